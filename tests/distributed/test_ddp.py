"""ORTModule in DistributedDataParallel: two processes against one on all rows, and against plain torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.distributed.conftest import Two

pytest.importorskip("torch")

from tests.distributed.scenarios import modules

# Sums over rows in another order, and Adam, which divides small gradients by their own size.
CLOSE = {"rtol": 1e-3, "atol": 1e-5}


def compare(found: dict[str, Any], expected: dict[str, Any], **tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        if array is None:
            assert found[name] is None, name
        else:
            np.testing.assert_allclose(found[name], array, err_msg=name, **(tolerance or {"rtol": 0}))


def test_bit_by_bit_one_process_that_adds_halves_up(two: Two) -> None:
    """Both halve the gradients of each half and add them up, which is exact but for the sum itself."""
    alone = modules.joined()
    np.testing.assert_array_equal(two.both("joined")[1]["outputs"], alone["outputs"])
    for found in two.both("joined"):
        compare(found["gradients"], alone["gradients"])
        compare(found["parameters"], alone["parameters"])
        # In each of 5 steps, each gradient was seen once, and once more when it was in its place.
        names = list(alone["gradients"])
        assert sorted(found["seen"]) == sorted(5 * [*names, *(len(names) * ["accumulated"])])


def test_one_process_on_the_joined_batch(two: Two) -> None:
    alone = modules.unused()
    outputs = np.concatenate([found["outputs"] for found in two.both("unused")])
    np.testing.assert_allclose(outputs, alone["outputs"], rtol=1e-5, atol=1e-6)
    for found in two.both("unused"):
        compare(found["gradients"], alone["gradients"], rtol=1e-4, atol=1e-7)
        compare(found["parameters"], alone["parameters"], **CLOSE)
        assert [name for name, g in found["gradients"].items() if g is None] == ["unused.weight", "unused.bias"]


@pytest.mark.parametrize("name", ["unused_here", "accumulated"])
def test_other_passes(two: Two, name: str) -> None:
    alone = modules.MODULES[name]()
    for found in two.both(name):
        compare(found, alone, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("title", modules.OPTIONS)
def test_options_mean_what_they_mean_in_torch(two: Two, title: str) -> None:
    """Gradients of the first step, and parameters after four of SGD with momentum; also what has no gradient."""
    ranks = [found[title] for found in two.both("options_of_torch")]
    for ours, torchs in ranks:
        compare(ours, torchs, rtol=1e-5, atol=1e-6)
    compare(ranks[0][0], ranks[1][0])  # all processes have the same


def test_buffers_are_those_of_rank_0(two: Two) -> None:
    (ours, theirs), (there, _) = two.both("buffers")
    compare(ours, theirs, rtol=1e-5, atol=1e-6)
    for name in ("scale", "first.weight", "norm.weight"):
        np.testing.assert_array_equal(ours[name], there[name])
    assert ours["scale"] == 1
    assert ours["norm.num_batches_tracked"] == 4


def test_inside_of_an_ortmodule_torch_exchanges_gradients(two: Two) -> None:
    """A graph of all that is inside would compute the gradients of its own rows, and no process would notice."""
    for (expected, _), *others in two.both("outside"):
        for found, said in others:
            compare(found, expected)
            assert "DistributedDataParallel(ORTModule(module))" in said

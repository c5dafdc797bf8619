"""ORTModule in DistributedDataParallel, started by torchrun: two processes against one on all rows."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from tests.distributed.launch import torchrun

pytest.importorskip("torch")

from tests.distributed import ddp

# Sums over rows in another order, and Adam, which divides small gradients by their own size.
CLOSE = {"rtol": 1e-3, "atol": 1e-5}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ddp")
    ended = torchrun([ddp.__file__, str(folder)], folder, limit=150)
    assert ended.code == 0, ended.output
    return [pickle.loads((folder / f"rank{rank}.pickle").read_bytes()) for rank in (0, 1)]


def compare(found: dict[str, Any], expected: dict[str, Any], **tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        if array is None:
            assert found[name] is None
        else:
            np.testing.assert_allclose(found[name], array, err_msg=name, **(tolerance or {"rtol": 0}))


def test_bit_by_bit_one_process_that_adds_halves_up(two: Any) -> None:
    """Both halve the gradients of each half and add them up, which is exact but for the sum itself."""
    alone = ddp.joined()
    np.testing.assert_array_equal(two[1]["joined"]["outputs"], alone["outputs"])
    for rank in (0, 1):
        found = two[rank]["joined"]
        compare(found["gradients"], alone["gradients"])
        compare(found["parameters"], alone["parameters"])
        # In each of 5 steps, each gradient was seen once, and once more when it was in its place.
        names = list(alone["gradients"])
        assert sorted(found["seen"]) == sorted(5 * [*names, *(len(names) * ["accumulated"])])


def test_one_process_on_the_joined_batch(two: Any) -> None:
    alone = ddp.unused()
    outputs = np.concatenate([two[rank]["unused"]["outputs"] for rank in (0, 1)])
    np.testing.assert_allclose(outputs, alone["outputs"], rtol=1e-5, atol=1e-6)
    for rank in (0, 1):
        found = two[rank]["unused"]
        compare(found["gradients"], alone["gradients"], rtol=1e-4, atol=1e-7)
        compare(found["parameters"], alone["parameters"], **CLOSE)
        assert [name for name, g in found["gradients"].items() if g is None] == ["unused.weight", "unused.bias"]


@pytest.mark.parametrize("name", ["unused_here", "accumulated"])
def test_other_passes(two: Any, name: str) -> None:
    alone = ddp.SCENARIOS[name]()
    for rank in (0, 1):
        compare(two[rank][name], alone, rtol=1e-5, atol=1e-7)


def test_buffers_are_those_of_rank_0(two: Any) -> None:
    ours, theirs = two[0]["buffers"]
    compare(ours, theirs, rtol=1e-5, atol=1e-6)
    for name in ("scale", "first.weight", "norm.weight"):
        np.testing.assert_array_equal(ours[name], two[1]["buffers"][0][name])
    assert ours["scale"] == 1
    assert ours["norm.num_batches_tracked"] == 4

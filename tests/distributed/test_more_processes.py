"""Three processes of torch.multiprocessing, and four: against one."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.comparison import CLOSE, assert_same, of_one
from tests.distributed.launch import launch

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

# What does not depend on how many there are. Batches of 5 to 10 rows leave some of the processes with fewer, or none.
SCENARIOS = (
    "exact_arithmetic", "unequal_shards", "ignored_labels", "weighted_rows", "sum_of_rows", "early_stopping",
    "accumulated_and_clipped", "order_of_its_own", "measured", "search_of_a_rate",
)  # fmt: skip


@pytest.fixture(scope="module", params=[3, 4])
def several(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder, size = tmp_path_factory.mktemp("several"), request.param
    names = [*SCENARIOS, "drawn_at_random", "continued", "error_in_one", "interrupted"]
    if size == 3:
        arguments = ["-m", "tests.distributed.multiprocessing", "spawn", str(folder), str(size), *names]
        ended = launch(arguments, size=1, limit=300)
    else:
        ended = launch(["-m", "tests.distributed.worker", str(folder), *names], size=size, limit=300)
    assert {each.code for each in ended} == {0}, "\n".join(each.output for each in ended)
    return [pickle.loads((folder / f"rank{rank}.pickle").read_bytes()) for rank in range(size)]


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_one_process_computes_on_the_joined_batch(several: Any, name: str, tmp_path: Path) -> None:
    for found in several:
        assert not isinstance(found[name], str), found[name]
        assert_same(found[name], several[0][name])
    exact = name == "exact_arithmetic" and len(several) == 4  # thirds are not
    assert_same(several[0][name], of_one(name, tmp_path), **({} if exact else CLOSE))


def test_what_they_begin_with_and_how_they_continue(several: Any) -> None:
    for found in several:
        assert_same(found["drawn_at_random"], several[0]["drawn_at_random"])
        whole, again, _ = found["continued"]
        assert_same(whole, again)


def test_an_error_in_one_process_ends_all(several: Any) -> None:
    for rank, found in enumerate(several):
        for error in found["error_in_one"][:3]:
            assert ("PeerError" in error[0]) == (rank != 1), error
            assert rank == 1 or "rank 1 failed with" in error[1]
        for error, _ in found["interrupted"]:
            assert error[0].startswith("KeyboardInterrupt")

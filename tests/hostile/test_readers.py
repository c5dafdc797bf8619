"""Damaged files of every kind, thousands of them: each is read, or refused by an OnwardError, soon and alive."""

from __future__ import annotations

import pytest

from tests.hostile.child import outcome
from tests.hostile.readers import READERS
from tests.hostile.survival import problems, told

# How many a reader gets: in `make test`, and in `make test-all`. Those that build graphs take longer.
QUICK = dict.fromkeys(("safetensors", "signature", "plan", "wire"), (300, 8000))
SLOW = {name: (40, 3000) for name in READERS if name not in (*QUICK, "planted")}
COUNTS = {**QUICK, **SLOW, "node cases": (0, 4000)}


def test_a_sample_of_damaged_files() -> None:
    found = problems(*((reader, 0, sample) for reader, (sample, _) in COUNTS.items() if sample), most=3)
    assert not found, told(found)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("reader", COUNTS)
def test_damaged_files(reader: str, part: int) -> None:
    count = COUNTS[reader][1] // 4
    found = problems((reader, part * count, (part + 1) * count))
    assert not found, told(found)


def test_what_readers_do_wrong_is_noticed() -> None:
    seeds = range(5, 10)
    found = problems(("planted", seeds.start, seeds.stop))
    kinds = {seed: READERS["planted"].damaged(seed)[0] % 5 for seed in seeds}
    assert set(kinds.values()) >= {1, 2, 3, 4}
    assert set(found) == {("planted", seed) for seed, kind in kinds.items() if kind in (1, 2, 4)}
    expected = {1: "KeyError: 'planted'", 2: "the process died with -6", 4: "MemoryError"}
    for (_, seed), said in found.items():
        assert expected[kinds[seed]] in said


@pytest.mark.parametrize("reader", ["safetensors", "odtc", "wire", "gradient", "training model"])
def test_some_damaged_files_are_read_and_some_are_not(reader: str) -> None:
    """Damage that every reader refuses at its first look would prove nothing."""
    assert {READERS[reader].damaged(3)} == {READERS[reader].damaged(3)}
    outcomes = {outcome(READERS[reader].read, READERS[reader].damaged(seed)) for seed in range(30)}
    assert outcomes == {"read", "refused"}

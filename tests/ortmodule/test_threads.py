"""Threads of torch give the cores up before a graph runs, and come back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from onward.torch import ORTModule, threads

TASKS = Path("/proc/self/task")


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def work() -> torch.Tensor:
    """Large enough for torch to divide it among threads."""
    return torch.ones(1000, 1000).relu().sum()


@pytest.mark.skipif(threads._pause() is None, reason="torch's OpenMP cannot be paused here")
@pytest.mark.skipif(not TASKS.exists(), reason="threads are counted as Linux lists them")
def test_threads_end_and_come_back(two_threads: None) -> None:
    work()
    running = len(list(TASKS.iterdir()))
    threads.rest_openmp()
    assert len(list(TASKS.iterdir())) == running - 1
    threads.rest_openmp()  # there is nothing to end
    assert work() == 1_000_000
    assert len(list(TASKS.iterdir())) == running


def test_no_thread_is_waited_for_in_vain(two_threads: None) -> None:
    """Each thread of a program has workers of its own in OpenMP, and ends only those."""
    module = ORTModule(torch.nn.Linear(64, 64))
    x = torch.ones(32, 64)
    wanted = module(x).detach()
    found: list[bool] = []

    def steps() -> None:
        for _ in range(20):
            result = module(x)
            result.sum().backward()
            found.append(bool(torch.equal(result, wanted)) and bool(work() == 1_000_000))

    runs = [threading.Thread(target=steps) for _ in range(3)]
    for run in runs:
        run.start()
    for run in runs:
        run.join(timeout=60)
    assert found == [True] * 60


def test_one_thread_is_left_alone(two_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    monkeypatch.setattr(threads, "_pause", lambda: called.append)
    threads.rest_openmp()
    torch.set_num_threads(1)
    threads.rest_openmp()
    assert called == [1]

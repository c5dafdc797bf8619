"""Threads of torch give the cores up before a graph runs, and come back."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

from onward.runtime.exchange import ExchangeSession
from onward.torch import ORTModule, threads
from onward.torch.ortmodule import runner, session

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
def test_threads_end_and_come_back(two_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_cores", lambda: 2)
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
    monkeypatch.setattr(threads, "_cores", lambda: 2)
    threads.rest_openmp()
    torch.set_num_threads(1)
    threads.rest_openmp()
    assert called == [1]


def test_threads_that_have_room_are_left_alone(two_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    monkeypatch.setattr(threads, "_pause", lambda: called.append)
    for cores in (3, 2, 4):  # the thread that calls, one of torch's, one of onnxruntime's
        monkeypatch.setattr(threads, "_cores", lambda cores=cores: cores)
        threads.rest_openmp()
    assert called == [1]


MODEL = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["": 17]> g (float[N, 2] x) => (float[N, 2] y) { y = Tanh(x) }'
)


def places(content: bytes, count: int, wanted: list[set[int]]) -> tuple[bool, list[set[int]]]:
    """Whether the threads of a session have cores of their own, and which ones its threads may run on."""
    before = set(os.listdir(TASKS))
    opened = ExchangeSession(content, threads=count)
    new = [int(thread) for thread in os.listdir(TASKS) if thread not in before]
    patience = time.monotonic() + 30
    while True:  # each thread chooses its core when it begins
        found = sorted((os.sched_getaffinity(thread) for thread in new), key=sorted)
        if found == wanted or time.monotonic() > patience:
            return opened.has_places, found
        time.sleep(0.01)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="cores are given on Linux only")
def test_a_session_over_all_cores_has_one_for_each_thread() -> None:
    content, cores = MODEL.SerializeToString(), sorted(os.sched_getaffinity(0))
    several = len(cores) > 1
    for count, wanted, has_places in (
        (1, [], False),
        (len(cores), [{core} for core in cores[1:]], several),
        (len(cores) + 2, [set(cores)] * (len(cores) + 1), False),  # others have the same in mind
    ):
        assert places(content, count, wanted) == (has_places, wanted)


def test_threads_of_torch_are_ended_before_long_runs_only(two_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(session, "rest_openmp", lambda: called.append("ended"))
    run = session.TensorSession(MODEL)
    run._all.session.has_places = True
    x = torch.ones(3, 2)
    monkeypatch.setattr(session, "_SHORT", 1e3)
    run.run([x])
    assert called == ["ended"]  # nobody knows yet how long it takes
    run.run([x])
    assert called == ["ended"]
    monkeypatch.setattr(session, "_SHORT", 0.0)
    run.run([x])
    run.run([x])
    assert called == ["ended"] * 3
    monkeypatch.setattr(session, "_SHORT", 1e3)
    run._all.session.has_places = False
    run.run([x])
    assert called == ["ended"] * 4


def test_one_run_that_was_disturbed_says_little(two_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """But many that take longer do: sizes have grown."""
    run = session.TensorSession(MODEL)
    clock = iter([second for took in (0.1, *[50.0] * 100) for second in (0.0, took)])
    monkeypatch.setattr(session.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(session, "rest_openmp", lambda: None)
    run.run([torch.ones(3, 2)])
    run.run([torch.ones(3, 2)])
    assert run._all.seconds == pytest.approx(0.11)
    for _ in range(99):
        run.run([torch.ones(3, 2)])
    assert run._all.seconds == 50.0


def test_threads_that_make_the_first_call_share_its_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    build = runner.build

    def slowly(*args: Any, **options: Any) -> Any:
        made.append(args)
        time.sleep(0.2)  # the others are there by now
        return build(*args, **options)

    monkeypatch.setattr(runner, "build", slowly)
    module = ORTModule(torch.nn.Linear(3, 2))
    x = torch.ones(4, 3)
    found: list[torch.Tensor] = []
    calls = [threading.Thread(target=lambda: found.append(module(x).detach())) for _ in range(3)]
    for call in calls:
        call.start()
    for call in calls:
        call.join(timeout=60)
    assert len(made) == 1
    assert all(torch.allclose(result, module.module(x)) for result in found)
    assert len(found) == 3


def test_tiny_graphs_are_tried_on_one_thread(two_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_TINY", float("inf"))
    run, x = session.TensorSession(MODEL), torch.randn(50, 2)
    found = [run.run([x])[0] for _ in range(3 * session._TRIALS)]
    assert run._one is not None
    assert run._one.runs >= session._TRIALS <= run._all.runs
    assert all(torch.equal(y, found[0]) for y in found)
    # Whichever takes less time at least runs from now on, until its runs take longer.
    for faster, slower in ((run._one, run._all), (run._all, run._one)):
        faster.seconds, slower.seconds = 1e-9, 1.0
        before = slower.runs
        run.run([x])
        assert slower.runs == before


def test_longer_graphs_keep_their_threads(two_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_TINY", 0.0)
    module, x = ORTModule(torch.nn.Linear(4, 4)), torch.ones(2, 4)
    for _ in range(3 * session._TRIALS):
        module(x).sum().backward()
    (plan,) = (found for plans in module._runner.plans.values() for found in plans.values())
    assert plan._forward._one is None

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


def test_threads_of_torch_are_ended_before_both_graphs_of_a_step_or_none(
    two_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    monkeypatch.setattr(session, "rest_openmp", lambda: called.append("ended"))
    forward = session.TensorSession(MODEL)
    backward = session.TensorSession(MODEL, forward)
    for run in (forward, backward):
        run._all.session.has_places, run._may_be_one = True, False
        run.run([torch.ones(3, 2)])
    assert called == ["ended"] * 2  # nobody knows yet how long they take
    forward._all.seconds, backward._all.seconds = session._SHORT / 2, session._SHORT * 1e6
    forward.run([torch.ones(3, 2)])
    assert called == ["ended"] * 3
    backward._all.seconds = session._SHORT / 2
    forward.run([torch.ones(3, 2)])
    backward.run([torch.ones(3, 2)])
    assert called == ["ended"] * 3


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


def taking(monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float]) -> list[int]:
    """Let sessions of so many threads take so long; yields how many each run had."""
    had: list[int] = []
    original = session._Timed.run

    def run(timed: session._Timed, *args: Any, **options: Any) -> Any:
        found = original(timed, *args, **options)
        timed.seconds = seconds[timed.threads]
        had.append(timed.threads)
        return found

    monkeypatch.setattr(session._Timed, "run", run)
    monkeypatch.setattr(session, "rest_openmp", lambda: None)
    return had


FIRST = [2] * session._TRIALS + [2, 1] + [1] * session._TRIALS  # until both have been timed


def test_the_callers_thread_alone_is_taken_where_it_is_faster(
    two_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {1: 1e-3, 2: 2e-3}
    had = taking(monkeypatch, seconds)
    run, x = session.TensorSession(MODEL), torch.ones(3, 2)
    count = session._TRIALS + 1 + session._TRIALS
    for _ in range(count + 250):
        assert torch.equal(run.run([x])[0], x.tanh())
    assert had[: len(FIRST)] == FIRST
    assert had[len(FIRST) :] == [1] * 250  # twice as long is far longer, and tried seldom
    seconds[2] = 0.5e-3
    run._all.seconds = 1.2e-3
    for _ in range(session._AGAIN):
        run.run([x])
    assert had[-1] == 2  # it was tried again, and turned out to be faster now


def test_the_slower_one_is_tried_again_now_and_then(two_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    had = taking(monkeypatch, {1: 1.2e-3, 2: 1e-3})
    run, x = session.TensorSession(MODEL), torch.ones(3, 2)
    for _ in range(2 * session._TRIALS + 1 + 3 * session._AGAIN):
        run.run([x])
    rest = had[len(FIRST) :]
    assert rest.count(1) == 3 * session._PROBES
    assert rest.count(2) == 3 * (session._AGAIN - session._PROBES)


@pytest.mark.parametrize("why", ["other bits", "long"])
def test_the_callers_thread_alone_is_not_taken(why: str, two_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it gives other bits, as convolutions do: a program would not compute the same each time. Or never helps."""
    had = taking(monkeypatch, {1: 1e-6, 2: 1e-3 if why == "other bits" else 2 * session._LIMITED})
    if why == "other bits":
        monkeypatch.setattr(session, "_is_same", lambda one, other: False)
    run, x = session.TensorSession(MODEL), torch.ones(3, 2)
    for _ in range(60):
        run.run([x])
    assert had.count(1) == (1 if why == "other bits" else 0)


def test_the_same_bits() -> None:
    nan = torch.tensor([float("nan"), 1.0])
    assert session._is_same(nan, nan.clone())
    assert session._is_same(torch.tensor(1.0), torch.tensor(1.0))
    assert session._is_same(torch.ones(0, 2), torch.ones(0, 2))
    assert not session._is_same(torch.tensor([1.0]), torch.tensor([1.0 + 2**-23]))


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

"""Batches prepared in a thread: nothing is lost, nothing hangs, and errors arrive as they were raised."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import traceback

import numpy as np
import pytest

from onward.trainer.prefetch import Prefetch


def wait_for(condition) -> None:
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize("depth", [0, 1, 2, 5])
def test_all_items_in_order(depth: int) -> None:
    assert list(Prefetch(range(100), depth)) == list(range(100))


@pytest.mark.parametrize("depth", [1, 2])
def test_no_more_than_depth_items_ahead(depth: int) -> None:
    made: list[int] = []
    with Prefetch((made.append(i) or i for i in range(100)), depth) as items:
        assert next(items) == 0
        wait_for(lambda: len(made) == depth + 2)  # one was taken, one waits for room
        time.sleep(0.05)
        assert len(made) == depth + 2


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_errors_arrive_unchanged_and_in_their_place(depth: int, kind: type[BaseException]) -> None:
    error = kind("as it is")

    def failing():
        yield 1
        yield 2
        raise error

    items = Prefetch(failing(), depth)
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(kind) as caught:
        next(items)
    assert caught.value is error
    assert "failing" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    with pytest.raises(StopIteration):
        next(items)


def test_an_error_at_the_start() -> None:
    class Broken:
        def __iter__(self):
            raise LookupError("no file")

    with pytest.raises(LookupError, match="no file"):
        next(Prefetch(Broken()))


@pytest.mark.parametrize("how", ["close", "with", "del", "exhausted"])
@pytest.mark.parametrize("depth", [0, 2])
def test_the_generator_is_closed(how: str, depth: int) -> None:
    closed = threading.Event()

    def numbers():
        try:
            yield from range(3 if how == "exhausted" else 10**9)
        finally:
            closed.set()

    items = Prefetch(numbers(), depth)
    next(items)
    if how == "close":
        items.close()
    elif how == "with":
        with items:
            pass
    elif how == "del":
        del items
        gc.collect()
    else:
        list(items)
    assert closed.wait(5)
    wait_for(lambda: not any(thread.name == "onward prefetch" for thread in threading.enumerate()))


def test_closing_does_not_wait_for_one_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.trainer.prefetch._PATIENCE", 0.05)
    release = threading.Event()

    def hanging():
        yield 1
        release.wait(20)
        yield 2

    items = Prefetch(hanging())
    next(items)
    began = time.perf_counter()
    items.close()
    assert time.perf_counter() - began < 5
    with pytest.raises(StopIteration):
        next(items)
    release.set()


def test_settings_of_the_consumer_hold() -> None:
    with np.errstate(divide="raise"):
        assert next(Prefetch(np.geterr()["divide"] for _ in range(1))) == "raise"


@pytest.mark.parametrize("end", ["", "raise SystemExit(0)", "import os, signal; os.kill(os.getpid(), signal.SIGINT)"])
def test_the_interpreter_ends(end: str) -> None:
    """With a thread that is in the middle of something, and one that waits for room."""
    script = f"""
import itertools, time
from onward.trainer.prefetch import Prefetch
def slow():
    yield 1
    time.sleep(100)
waiting, sleeping = Prefetch(itertools.count()), Prefetch(slow())
next(waiting), next(sleeping)
try:
    {end or "pass"}
except KeyboardInterrupt:
    raise SystemExit(0)
"""
    run = subprocess.run([sys.executable, "-c", script], timeout=60, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.skipif(sys.platform == "win32", reason="there is no alarm signal")
def test_ctrl_c_while_waiting() -> None:
    script = """
import signal, time
from onward.trainer.prefetch import Prefetch
def interrupt(*_): raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.2)
items = Prefetch(time.sleep(100) for _ in range(3))
try:
    next(items)
except KeyboardInterrupt:
    print("interrupted")
"""
    run = subprocess.run([sys.executable, "-c", script], timeout=60, capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "interrupted\n", "")

"""Train in child processes that are killed, at random moments and at chosen ones, until the work is done.

Usage: kill_and_resume.py <folder with artifacts> <seed>. Prints what happened as JSON. Children are forked from a
process that has imported everything but not used it, so that a kill costs milliseconds.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from onward.api import CheckpointState, LinearLRScheduler, Module, Optimizer
from onward.runtime import files

STEPS = 120
RANDOM_KILLS = 8  # after a few steps each; on a busy machine the killer may come late, hence the many steps


def train(folder: Path, checkpoint: Path) -> None:
    """Continue from the checkpoint if there is one; save after every step."""
    state = CheckpointState.load_checkpoint(checkpoint if checkpoint.exists() else folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state)
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    scheduler = LinearLRScheduler(optimizer, 5, 2 * STEPS, 0.05)
    done = int(dict(state.properties).get("done", 0))
    for step in range(done, STEPS):
        data = np.random.default_rng(step)
        module(data.normal(size=(6, 2, 6, 6)).astype(np.float32), data.integers(0, 3, 6))
        optimizer.step()
        scheduler.step()
        module.lazy_reset_grad()
        state.properties["done"] = step + 1
        CheckpointState.save_checkpoint(state, checkpoint, include_optimizer_state=True)


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class HalfFile:
    """A file that lets its process die when half a checkpoint has been written."""

    def __init__(self, file: object) -> None:
        self._file, self._writes = file, 0

    def write(self, data: bytes) -> None:
        self._writes += 1
        if self._writes > 8:
            self._file.flush()  # type: ignore[attr-defined]
            die()
        self._file.write(data)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def __enter__(self) -> HalfFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()  # type: ignore[attr-defined]


def die_while_writing() -> None:
    files.open = lambda *arguments: HalfFile(open(*arguments))  # type: ignore[attr-defined]  # noqa: SIM115


def die_before_the_rename() -> None:
    files.os.replace = die  # type: ignore[assignment]


def die_after_the_rename() -> None:
    files._sync_directory = die


def attempt(folder: Path, checkpoint: Path, prepare: Callable[[], None] | None = None, saves: float = math.inf) -> bool:
    """Run a child, and kill it after so many saves (and a fraction of the next); returns whether it came to the end."""
    begin, before = time.perf_counter(), _identity(checkpoint)
    child = os.fork()
    if child == 0:
        try:
            if prepare is not None:
                prepare()
            train(folder, checkpoint)
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    while saves < math.inf and os.waitpid(child, os.WNOHANG) == (0, 0):
        now = _identity(checkpoint)
        if now != before:
            before, saves, duration, begin = now, saves - 1, time.perf_counter() - begin, time.perf_counter()
        if saves < 1:
            time.sleep(saves * duration)
            os.kill(child, signal.SIGKILL)
            break
        time.sleep(1e-4)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return False
    assert os.WEXITSTATUS(status) == 0, "a child could not continue"
    return True


def _identity(path: Path) -> tuple[int, int] | None:
    """Changes whenever a file is replaced."""
    if not path.exists():
        return None
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns


def main(folder: Path, seed: int) -> None:
    checkpoint = folder / "interrupted"
    assert attempt(folder, folder / "uninterrupted")
    moments = random.Random(seed)
    killed, progress = 0, []
    for prepare in (None, die_while_writing, die_before_the_rename, die_after_the_rename, *[None] * RANDOM_KILLS):
        killed += not attempt(folder, checkpoint, prepare, math.inf if prepare else moments.uniform(1, 4))
        progress.append(steps_done(checkpoint))
    assert attempt(folder, checkpoint)
    print(json.dumps({"killed": killed, "progress": progress}))


def steps_done(checkpoint: Path) -> int:
    return int(CheckpointState.load_checkpoint(checkpoint).properties["done"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

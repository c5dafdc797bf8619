"""Let `fit` be killed in child processes, at random moments and while it writes a checkpoint, until it is done.

Usage: kill_and_resume.py <folder> <seed>. Prints what happened as JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import onward
from onward.callbacks import Checkpoints, EarlyStopping
from onward.callbacks.checkpoints import checkpoints_in
from tests.api.kill_and_resume import die_after_the_rename, die_before_the_rename, die_while_writing
from tests.trainer.toys import classifier, labelled

RANDOM_KILLS = 3


def train(folder: Path, result: Path) -> None:
    """Continue what is in the folder, or begin; in the end, write everything to a file."""
    trainer = onward.Trainer(
        classifier(dropout=True, normalised=True), "cross_entropy", "adamw", learning_rate=0.02, metrics=["accuracy"],
        schedule=("reduce_on_plateau", {"patience": 0}), accumulate=2,
    )  # fmt: skip
    callbacks = [
        EarlyStopping("val_loss", patience=20, restore_best=True),
        Checkpoints(folder, every=1, keep_best=2, monitor="val_accuracy"),
    ]
    history = trainer.fit(
        *labelled(60), epochs=8, batch_size=4, validation=0.2, callbacks=callbacks, resume=True, progress=False
    )
    for row in history.epochs:
        row["seconds"] = 0.0
    history.seconds = [0.0] * len(history.seconds)
    history.samples = []  # taken when there is time
    trainer.save(result)


def attempt(folder: Path, result: Path, prepare: Callable[[], None] | None = None, saves: float | None = None) -> bool:
    """Run a child, killed after so many checkpoints and a fraction of the time to the next; whether it was done."""
    child = os.fork()
    if child == 0:
        try:
            if prepare is not None:
                prepare()
            train(folder, result)
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    begin, before, ended = time.perf_counter(), newest(folder), (0, 0)
    while saves is not None and ended == (0, 0):
        if newest(folder) != before:
            saves, duration = saves - 1, time.perf_counter() - begin
            begin, before = time.perf_counter(), newest(folder)
            if saves < 1:
                time.sleep(saves * duration)
                os.kill(child, signal.SIGKILL)
                break
        time.sleep(1e-4)
        ended = os.waitpid(child, os.WNOHANG)
    _, status = os.waitpid(child, 0) if ended == (0, 0) else ended
    if os.WIFSIGNALED(status):
        return False
    assert os.WEXITSTATUS(status) == 0, "a child could not continue"
    return True


def newest(folder: Path) -> int:
    return max(checkpoints_in(folder), default=0)


def main(folder: Path, seed: int) -> None:
    assert attempt(folder / "whole", folder / "uninterrupted")
    parts, result = folder / "parts", folder / "interrupted"
    moments, killed, progress = random.Random(seed), 0, []
    dying = (die_while_writing, die_before_the_rename, die_after_the_rename)
    for prepare in (None, *dying, *[None] * RANDOM_KILLS):
        killed += not attempt(parts, result, prepare, None if prepare else moments.uniform(1, 4))
        progress.append(newest(parts))
    assert attempt(parts, result)
    print(json.dumps({"killed": killed, "progress": progress}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

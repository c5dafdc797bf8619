"""Broken off, and continued: in the same processes, in others, in one."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import onward
from onward.callbacks import Callback, Checkpoints, EarlyStopping
from onward.trainer.strategy import Strategy
from tests.distributed.scenarios.registry import break_at, everything, failure, fast, quiet, scenario
from tests.trainer.toys import classifier, labelled


def noisy(strategy: Strategy | None) -> onward.Trainer:
    """A model that draws, has statistics, measures, and adds batches up."""
    made: onward.Trainer = fast(
        classifier(dropout=True, normalised=True), optimizer="adamw", metrics=["accuracy", "auc"], accumulate=2,
        schedule=("reduce_on_plateau", {"patience": 0}), strategy=strategy,
    )  # fmt: skip
    return made


def rehearsed(trainer: onward.Trainer, folder: Path | None, *callbacks: Callback, resume: bool = False) -> None:
    given = [EarlyStopping("val_loss", patience=20, restore_best=True), *callbacks]
    if folder is not None:
        given.append(Checkpoints(folder, every=1, keep=3))
    trainer.fit(
        *labelled(43), epochs=3, batch_size=6, validation=labelled(9, seed=1), callbacks=given, resume=resume, **quiet
    )


@scenario
def continued(strategy: Strategy | None, folder: Path) -> Any:
    """Broken off in one process, and continued by a new trainer, in all: bit for bit what would have been."""
    whole = noisy(strategy)
    rehearsed(whole, None)
    error = failure(lambda: rehearsed(noisy(strategy), folder / "parts", break_at(6, strategy, 1)))
    again = noisy(strategy)
    rehearsed(again, folder / "parts", resume=True)
    return everything(whole), everything(again), error


@scenario
def continued_in_memory(strategy: Strategy | None, folder: Path) -> Any:
    whole, broken = noisy(strategy), noisy(strategy)
    rehearsed(whole, None)
    breaking = break_at(5, strategy, 0)
    error = failure(lambda: rehearsed(broken, None, breaking))
    rehearsed(broken, None, resume=True)
    return everything(whole), everything(broken), error


@scenario
def left_for_one(strategy: Strategy | None, folder: Path) -> Any:
    """What two processes have saved in the middle of an epoch, for one to continue; here, the whole of it."""
    fit: Any = functools.partial(fast, classifier(), optimizer="adamw", metrics=["accuracy"], strategy=strategy)
    given = {"epochs": 3, "batch_size": 10, **quiet}
    broken = fit()
    callbacks = [Checkpoints(folder / "left", every=1), break_at(7, strategy, 0)]
    failure(lambda: broken.fit(*labelled(48), callbacks=callbacks, **given))
    whole = fit()
    whole.fit(*labelled(48), **given)
    return everything(whole), broken.steps

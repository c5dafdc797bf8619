"""Checkpoints in a folder: the newest, from which training continues, and the best."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onward.callbacks.base import Callback, Run
from onward.callbacks.monitor import Mode, Monitor
from onward.errors import OnwardError

_NAME = re.compile(r"step-(\d{9,})\.checkpoint")


def checkpoints_in(directory: str | os.PathLike[str]) -> dict[int, Path]:
    """The checkpoints of a folder by their steps, the newest last."""
    folder = Path(directory)
    if not folder.is_dir():
        return {}
    found = {int(match[1]): path for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))}
    return dict(sorted(found.items()))


class Checkpoints(Callback):
    """Writes checkpoints to a folder, and removes those that are neither the newest nor among the best.

    Each is one file, called after the number of updates, that is there as a whole or not at all. From the newest
    ``fit(resume=True)`` continues as if nothing had happened. One is also written when training ends by an error or by
    Ctrl-C. A model that has numbers which are not finite is never written.

    Args:
        directory: the folder; made if missing.
        every: after so many steps; None for none within an epoch.
        each_epoch: whether one is written after each epoch.
        keep: how many of the newest are kept.
        keep_best: how many of the best are kept besides.
        monitor: the number that says which are the best: its name in the history; by default the loss of the
            validation, or of the training where there is none.
        mode: whether "min" or "max" is better; "auto" tells from the name.
    """

    first_only = True

    def __init__(
        self,
        directory: str | os.PathLike[str],
        every: int | None = None,
        *,
        each_epoch: bool = True,
        keep: int = 1,
        keep_best: int = 0,
        monitor: str | None = None,
        mode: Mode = "auto",
    ) -> None:
        for name, value, least in (("every", every, 1), ("keep", keep, 1), ("keep_best", keep_best, 0)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise OnwardError(f"`{name}` is a number, at least {least}, not {value!r}")
        if every is None and not each_epoch:
            raise OnwardError("Checkpoints would write nothing: give `every`, a number of steps, or each_epoch=True")
        self.directory = Path(directory)
        self.every, self.each_epoch, self.keep, self.keep_best = every, each_epoch, keep, keep_best
        self._monitor = Monitor(monitor, mode)
        self._best: dict[int, float] = {}  # by step
        self._saved: tuple[int, bool] | None = None  # the step of the newest, and whether its epoch had ended

    @property
    def newest(self) -> Path | None:
        """The newest checkpoint in the folder."""
        return next(reversed(checkpoints_in(self.directory).values()), None)

    @property
    def best(self) -> list[Path]:
        """The best checkpoints, the very best first."""
        ranked = sorted(self._best, key=lambda step: self._rank(self._best[step]))
        return [self._path(step) for step in ranked]

    def on_fit_begin(self, run: Run) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OnwardError(
                f"checkpoints cannot be written to {str(self.directory)!r}: {error.strerror or error}"
            ) from error
        if not os.access(self.directory, os.W_OK):  # said before an epoch has been trained for nothing
            raise OnwardError(f"checkpoints cannot be written to {str(self.directory)!r}: permission denied")
        found = checkpoints_in(self.directory)
        self._saved = None
        if not run.resumed:
            self._best = {}
        if found and not run.resumed and (run.step == 0 or max(found) > run.step):
            raise OnwardError(
                f"{str(self.directory)!r} has checkpoints of another training, the newest {found[max(found)].name!r}: "
                "continue it with fit(resume=True), remove them, or use another directory"
            )

    def on_epoch_end(self, run: Run) -> None:
        if self.keep_best and self.each_epoch:
            self._best[run.step] = self._monitor.value(run.logs)
            ranked = sorted(self._best, key=lambda step: self._rank(self._best[step]))
            self._best = {step: self._best[step] for step in ranked[: self.keep_best]}

    def on_settled(self, run: Run) -> None:
        at_end = run.batch == 0
        if (self.each_epoch and at_end) or (self.every and run.step % self.every == 0 and not at_end):
            self._save(run)

    def on_fit_end(self, run: Run) -> None:
        if run.error is not None and run.step > 0 and self._saved != (run.step, run.batch == 0):
            # What ended training counts, not that there is no room for a checkpoint.
            with contextlib.suppress(OnwardError):
                self._save(run)

    def _save(self, run: Run) -> None:
        run.save(self._path(run.step))
        self._saved = run.step, run.batch == 0
        found = checkpoints_in(self.directory)
        old = list(found)[: -self.keep]
        for step in old:
            if step not in self._best:
                with contextlib.suppress(OSError):
                    found[step].unlink()

    def _path(self, step: int) -> Path:
        return self.directory / f"step-{step:09d}.checkpoint"

    def _rank(self, value: float) -> tuple[bool, float]:
        """What is no number comes last."""
        return value != value, -value if self._monitor.is_larger_better() else value

    def state_dict(self) -> dict[str, Any]:
        return {"best": {str(step): value for step, value in self._best.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._best = {int(step): float(value) for step, value in state["best"].items()}

    def __repr__(self) -> str:
        return f"Checkpoints({str(self.directory)!r}, every={self.every}, keep_best={self.keep_best})"

"""Stop when nothing gets better any more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onward.callbacks.base import Callback, Run
from onward.callbacks.monitor import Mode, Monitor
from onward.errors import OnwardError


class EarlyStopping(Callback):
    """Ends training when a number has not improved for `patience` epochs.

    Args:
        monitor: the number, by its name in the history; by default the loss of the validation, or of the training where
            there is none.
        patience: after how many epochs without improvement training ends.
        min_delta: by how much a number has to be better to count.
        restore_best: set the parameters back to those of the best epoch in the end.
        mode: whether "min" or "max" is better; "auto" tells from the name.
    """

    def __init__(
        self,
        monitor: str | None = None,
        patience: int = 5,
        min_delta: float = 0.0,
        restore_best: bool = False,
        *,
        mode: Mode = "auto",
    ) -> None:
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 1:
            raise OnwardError(f"`patience` is a number of epochs, at least 1, not {patience!r}")
        if not 0 <= min_delta < float("inf"):
            raise OnwardError(f"`min_delta` is a number that is not negative, not {min_delta!r}")
        self._monitor, self.patience, self.min_delta = Monitor(monitor, mode), patience, min_delta
        self.restore_best = restore_best
        self._reset()

    def _reset(self) -> None:
        self.best: float | None = None
        self.best_epoch: int | None = None
        self.waited = 0
        self._snapshot: dict[str, np.ndarray] = {}

    @property
    def stopped(self) -> bool:
        """Whether it has ended training."""
        return self.waited >= self.patience

    def on_fit_begin(self, run: Run) -> None:
        if not run.resumed:
            self._reset()
        self._stop(run)

    def on_epoch_end(self, run: Run) -> None:
        value = self._monitor.value(run.logs)
        if self._monitor.is_better(value, self.best, self.min_delta):
            self.best, self.best_epoch, self.waited = value, run.epoch, 0
            if self.restore_best:
                self._snapshot = run.snapshot()
        else:
            self.waited += 1
        self._stop(run)

    def _stop(self, run: Run) -> None:
        if self.stopped:
            run.stop(f"{self._monitor.of(run.logs)} has not improved for {self.waited} epochs")

    def on_fit_end(self, run: Run) -> None:
        if self.restore_best and self._snapshot and run.error is None:
            run.restore(self._snapshot)

    def state_dict(self) -> dict[str, Any]:
        state = {"best": self.best, "best_epoch": self.best_epoch, "waited": self.waited}
        return {**state, "snapshot": self._snapshot}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best, self.best_epoch, self.waited = state["best"], state["best_epoch"], state["waited"]
        self._snapshot = dict(state["snapshot"])

    def __repr__(self) -> str:
        return f"EarlyStopping(monitor={self._monitor.name!r}, patience={self.patience}, best={self.best})"

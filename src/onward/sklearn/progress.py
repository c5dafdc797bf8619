"""When training ends: scikit-learn's rules, as a callback of the training loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onward.callbacks.base import Callback, Run

_SMALLEST_RATE = 1e-6  # below it an adaptive rate is not divided any more


@dataclass
class Record:
    """What an estimator remembers of its training; it goes on from call to call with `warm_start` or `partial_fit`."""

    early_stopping: bool
    losses: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    best_loss: float = np.inf
    best_score: float = -np.inf
    best_weights: dict[str, np.ndarray] | None = None
    idle: int = 0  # epochs in a row without progress
    seen: int = 0  # rows, over all epochs


class Progress(Callback):
    """Stops where the loss, or the score of rows held back, has not become better for a while; sets the rate.

    Args:
        parameters: of the estimator.
        rows: how many an epoch has.
        score: of the rows held back, with the weights as they are; None takes the loss instead.
    """

    def __init__(
        self, record: Record, parameters: dict[str, Any], rows: int, score: Callable[[], float] | None
    ) -> None:
        self._record, self._score, self._rows = record, score, rows
        self._tolerance, self._patience = parameters["tol"], parameters["n_iter_no_change"]
        self._verbose = parameters["verbose"]
        self._policy = "constant" if parameters["solver"] == "adam" else parameters["learning_rate"]
        self._first_rate, self._power = float(parameters["learning_rate_init"]), parameters["power_t"]
        self.epochs = 0
        self.converged = False

    def on_epoch_end(self, run: Run) -> None:
        record, loss = self._record, run.logs["loss"]
        self.epochs += 1
        record.seen += self._rows
        record.losses.append(loss)
        self._say(f"Iteration {self.epochs}, loss = {loss:.8f}")
        if self._score is None:
            self._compare_loss(loss)
        else:
            self._compare_score(self._score(), run)
        if self._policy == "invscaling":
            run.learner.rate = self._first_rate / (record.seen + 1) ** self._power
        if record.idle > self._patience:
            self._settle(run)

    def _compare_loss(self, loss: float) -> None:
        record = self._record
        record.idle = record.idle + 1 if loss > record.best_loss - self._tolerance else 0
        record.best_loss = min(record.best_loss, loss)

    def _compare_score(self, score: float, run: Run) -> None:
        record = self._record
        record.scores.append(score)
        self._say(f"Validation score: {score:f}")
        record.idle = record.idle + 1 if score < record.best_score + self._tolerance else 0
        if score > record.best_score:
            record.best_score, record.best_weights = score, run.snapshot()

    def _settle(self, run: Run) -> None:
        """Stop, or go on with a fifth of the rate."""
        what = "Training loss" if self._score is None else "Validation score"
        text = f"{what} did not improve more than tol={self._tolerance:f} for {self._patience} consecutive epochs."
        rate = run.learner.rate
        if self._policy == "adaptive" and rate > _SMALLEST_RATE:
            run.learner.rate = rate / 5.0
            self._record.idle = 0
            self._say(f"{text} Setting learning rate to {rate / 5.0:f}")
            return
        small = " Learning rate too small." if self._policy == "adaptive" else ""
        self._say(f"{text}{small} Stopping.")
        self.converged = True
        run.stop(text)

    def _say(self, text: str) -> None:
        if self._verbose:
            print(text)

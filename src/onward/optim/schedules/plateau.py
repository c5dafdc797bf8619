"""The schedule that follows a metric."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from onward.errors import OnwardError
from onward.optim.schedules.base import Schedule
from onward.rate import checked_rate


class ReduceOnPlateau(Schedule):
    """The rate times `factor` when a metric has not improved for more than `patience` observations.

    torch's ReduceLROnPlateau, with its meaning of every option. Tell it the metric with `observe`.
    """

    def __init__(
        self,
        learning_rate: float,
        *,
        mode: Literal["min", "max"] = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: Literal["rel", "abs"] = "rel",
        cooldown: int = 0,
        min_lr: float = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if mode not in ("min", "max"):
            raise OnwardError(f"mode={mode!r} is not known; use 'min' or 'max'")
        if threshold_mode not in ("rel", "abs"):
            raise OnwardError(f"threshold_mode={threshold_mode!r} is not known; use 'rel' or 'abs'")
        if not factor < 1:
            raise OnwardError(f"factor must be less than 1, not {factor}")
        self.mode = mode
        self.factor = factor
        self.patience = patience
        self.threshold = threshold
        self.threshold_mode = threshold_mode
        self.cooldown = cooldown
        self.min_lr = min_lr
        self.eps = eps
        self._lr = checked_rate(learning_rate, "learning_rate")
        self.__post_init__()
        self._best: float | None = None
        self._bad = 0
        self._cooling = 0

    def __call__(self, step: int) -> float:
        return self._lr

    def observe(self, metric: float) -> float:
        """Take one observation of the metric into account; returns the learning rate from now on."""
        metric = float(metric)
        if self._is_better(metric):
            self._best, self._bad = metric, 0
        else:
            self._bad += 1
        if self._cooling > 0:
            self._cooling, self._bad = self._cooling - 1, 0
        if self._bad > self.patience:
            reduced = max(self._lr * self.factor, self.min_lr)
            if self._lr - reduced > self.eps:
                self._lr = reduced
            self._cooling, self._bad = self.cooldown, 0
        return self._lr

    def describe(self) -> dict[str, Any]:
        options = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return {"name": type(self).__name__, "learning_rate": self._lr, **options}

    def state_dict(self) -> dict[str, float]:
        state = {"learning_rate": self._lr, "bad_count": self._bad, "cooldown_left": self._cooling}
        return state if self._best is None else {**state, "best": self._best}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        missing = {"learning_rate", "bad_count", "cooldown_left"} - state.keys()
        if missing:
            raise OnwardError(f"the saved state of ReduceOnPlateau lacks {', '.join(sorted(missing))}")
        self._lr = checked_rate(state["learning_rate"], "the learning rate in the saved state of ReduceOnPlateau")
        self._bad = int(state["bad_count"])
        self._cooling = int(state["cooldown_left"])
        self._best = float(state["best"]) if "best" in state else None

    def _is_better(self, metric: float) -> bool:
        sign = 1 if self.mode == "min" else -1
        if self._best is None:
            return sign * metric < math.inf
        margin = self.threshold * (self._best if self.threshold_mode == "rel" else 1)
        return sign * metric < sign * (self._best - sign * margin)

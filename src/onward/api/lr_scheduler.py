"""Learning rate schedulers: `onward.optim.schedules`, applied to an optimizer.

A scheduler sets the learning rate for the number of updates that the optimizer has made, when it is created and at
every `step()`, which comes after `optimizer.step()`. So it continues by itself when the optimizer was loaded from a
checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any, Literal

from onward.api.optimizer import Optimizer
from onward.errors import OnwardError
from onward.optim import schedules
from onward.rate import checked_rate


class LRScheduler:
    """Applies any `onward.optim.schedules.Schedule` to an optimizer.

    What a schedule has to remember (only `ReduceOnPlateau` has) is saved in checkpoints with the optimizer; a scheduler
    that is made with the same arguments as the saved one continues from there.
    """

    def __init__(self, optimizer: Optimizer, schedule: schedules.Schedule, initial_lr: float | None = None) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(self).__name__} needs an Optimizer, not {type(optimizer).__name__}")
        self._optimizer, self._scheduler = optimizer, schedule
        self._identity = {"schedule": type(schedule).__name__, "arguments": _arguments(schedule)}
        state = optimizer._optimizer.state
        if initial_lr is not None:
            state.initial_learning_rate = checked_rate(initial_lr, "initial_lr")
        saved = state.schedule or {}
        if saved.get("state") and {key: saved.get(key) for key in self._identity} == self._identity:
            schedule.load_state_dict(saved["state"])
        self.step()

    def step(self) -> None:
        """Set the learning rate of the optimizer's next step."""
        steps = self._optimizer._optimizer
        with steps.access.exclusive():
            self._optimizer.set_learning_rate(self._rate(steps.state.step))
            steps.state.schedule = {**self._identity, "state": self._scheduler.state_dict()}

    def _rate(self, step: int) -> float:
        try:
            return self._scheduler(step)
        except ArithmeticError as error:
            raise OnwardError(f"{self._scheduler!r} has no learning rate after {step} updates: {error}") from error

    def state_dict(self) -> dict[str, float]:
        """What has to be saved besides the step of the optimizer."""
        return self._scheduler.state_dict()

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Continue from a saved state."""
        self._scheduler.load_state_dict(state)
        LRScheduler.step(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._scheduler!r})"


class LinearLRScheduler(LRScheduler):
    """Up from 0 to `initial_lr` over the warm-up, then down to 0 at `total_step_count`.

    (The original has the two counts the wrong way round.)
    """

    def __init__(self, optimizer: Optimizer, warmup_step_count: int, total_step_count: int, initial_lr: float) -> None:
        super().__init__(optimizer, schedules.Linear(initial_lr, warmup_step_count, total_step_count), initial_lr)


class ConstantLRScheduler(LRScheduler):
    """`initial_lr`, after a linear warm-up."""

    def __init__(self, optimizer: Optimizer, initial_lr: float, warmup_step_count: int = 0) -> None:
        super().__init__(optimizer, schedules.Constant(initial_lr, warmup_step_count), initial_lr)


class CosineLRScheduler(LRScheduler):
    """Down from `initial_lr` to `minimum` along half a cosine, after a linear warm-up."""

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_step_count: int,
        total_step_count: int,
        initial_lr: float,
        minimum: float = 0.0,
        cycles: float = 0.5,
    ) -> None:
        schedule = schedules.Cosine(initial_lr, total_step_count, warmup_step_count, minimum, cycles)
        super().__init__(optimizer, schedule, initial_lr)


class PolynomialLRScheduler(LRScheduler):
    """Down from `initial_lr` to `minimum` as (1 - s / total)^power, after a linear warm-up."""

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_step_count: int,
        total_step_count: int,
        initial_lr: float,
        power: float = 1.0,
        minimum: float = 0.0,
    ) -> None:
        schedule = schedules.Polynomial(initial_lr, total_step_count, power, warmup_step_count, minimum)
        super().__init__(optimizer, schedule, initial_lr)


class StepLRScheduler(LRScheduler):
    """`initial_lr` times `gamma` after every `step_size` steps."""

    def __init__(self, optimizer: Optimizer, step_size: int, initial_lr: float, gamma: float = 0.1) -> None:
        super().__init__(optimizer, schedules.Step(initial_lr, step_size, gamma), initial_lr)


class ExponentialLRScheduler(LRScheduler):
    """`initial_lr` times `gamma` after every step."""

    def __init__(self, optimizer: Optimizer, initial_lr: float, gamma: float) -> None:
        super().__init__(optimizer, schedules.Exponential(initial_lr, gamma), initial_lr)


class OneCycleLRScheduler(LRScheduler):
    """Up to `max_lr`, then down to far below where it started: torch's OneCycleLR."""

    def __init__(
        self,
        optimizer: Optimizer,
        total_step_count: int,
        max_lr: float,
        pct_start: float = 0.3,
        anneal: Literal["cos", "linear"] = "cos",
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
    ) -> None:
        schedule = schedules.OneCycle(
            max_lr, total_step_count, pct_start, anneal, div_factor, final_div_factor, three_phase
        )
        super().__init__(optimizer, schedule, max_lr / div_factor)


class ReduceOnPlateauLRScheduler(LRScheduler):
    """`initial_lr`, times `factor` whenever a metric stops improving: torch's ReduceLROnPlateau."""

    def __init__(
        self,
        optimizer: Optimizer,
        initial_lr: float,
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
        self._plateau = schedules.ReduceOnPlateau(
            initial_lr,
            mode=mode,
            factor=factor,
            patience=patience,
            threshold=threshold,
            threshold_mode=threshold_mode,
            cooldown=cooldown,
            min_lr=min_lr,
            eps=eps,
        )
        super().__init__(optimizer, self._plateau, initial_lr)

    def step(self, metric: float | None = None) -> None:
        """Take one observation of the metric into account."""
        if metric is not None:
            self._plateau.observe(metric)
        super().step()


def _arguments(schedule: schedules.Schedule) -> dict[str, Any]:
    """What a schedule was made with, as plain values."""
    if is_dataclass(schedule):
        return asdict(schedule)
    return {name: value for name, value in vars(schedule).items() if not name.startswith("_")}

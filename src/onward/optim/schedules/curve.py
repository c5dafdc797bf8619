"""Schedules that are formulas: values without state, of which the step decides the rate alone."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from onward.errors import OnwardError
from onward.optim.schedules.base import Schedule


@dataclass(frozen=True)
class Constant(Schedule):
    """learning_rate, after a linear warm-up."""

    learning_rate: float
    warmup_step_count: float = 0

    def __call__(self, step: int) -> float:
        return self.learning_rate * _warmup(step, self.warmup_step_count)


@dataclass(frozen=True)
class Linear(Schedule):
    """Up from 0 to learning_rate over `warmup_step_count` steps, then down to 0 at step `total_step_count`.

    s / max(1, warmup) while s < warmup, then max(0, (total - s) / max(1, total - warmup)).
    """

    learning_rate: float
    warmup_step_count: float
    total_step_count: int

    def __call__(self, step: int) -> float:
        if step < self.warmup_step_count:
            return self.learning_rate * _warmup(step, self.warmup_step_count)
        left = (self.total_step_count - step) / max(1, self.total_step_count - self.warmup_step_count)
        return self.learning_rate * max(0.0, left)


@dataclass(frozen=True)
class LinearFactor(Schedule):
    """From start_factor to end_factor times learning_rate over `total_step_count` steps: torch's LinearLR."""

    learning_rate: float
    total_step_count: int = 5
    start_factor: float = 1 / 3
    end_factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_counts(total_step_count=self.total_step_count)

    def __call__(self, step: int) -> float:
        done = min(step, self.total_step_count) / self.total_step_count
        return self.learning_rate * (self.start_factor + (self.end_factor - self.start_factor) * done)


@dataclass(frozen=True)
class Cosine(Schedule):
    """minimum + (learning_rate - minimum) (1 + cos(2 pi cycles s / total)) / 2, s and total counted after the warm-up.

    With cycles = 0.5 it falls once: torch's CosineAnnealingLR with T_max = total. Like torch's it rises again beyond
    the total.
    """

    learning_rate: float
    total_step_count: int
    warmup_step_count: float = 0
    minimum: float = 0.0
    cycles: float = 0.5

    def __call__(self, step: int) -> float:
        if step < self.warmup_step_count:
            return self.learning_rate * _warmup(step, self.warmup_step_count)
        done = (step - self.warmup_step_count) / max(1, self.total_step_count - self.warmup_step_count)
        wave = (1 + math.cos(2 * math.pi * self.cycles * done)) / 2
        return self.minimum + (self.learning_rate - self.minimum) * wave


@dataclass(frozen=True)
class CosineRestarts(Schedule):
    """A falling cosine that starts again after `first_cycle` steps, and each cycle is `growth` times as long.

    torch's CosineAnnealingWarmRestarts.
    """

    learning_rate: float
    first_cycle: int
    growth: int = 1
    minimum: float = 0.0
    warmup_step_count: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_counts(first_cycle=self.first_cycle, growth=self.growth)

    def __call__(self, step: int) -> float:
        if step < self.warmup_step_count:
            return self.learning_rate * _warmup(step, self.warmup_step_count)
        position, length = step - self.warmup_step_count, self.first_cycle
        if self.growth == 1:
            position %= length
        while position >= length:
            position, length = position - length, length * self.growth
        wave = (1 + math.cos(math.pi * position / length)) / 2
        return self.minimum + (self.learning_rate - self.minimum) * wave


@dataclass(frozen=True)
class Polynomial(Schedule):
    """minimum + (learning_rate - minimum) (1 - s / total)^power, s and total counted after the warm-up."""

    learning_rate: float
    total_step_count: int
    power: float = 1.0
    warmup_step_count: float = 0
    minimum: float = 0.0

    def __call__(self, step: int) -> float:
        if step < self.warmup_step_count:
            return self.learning_rate * _warmup(step, self.warmup_step_count)
        done = (step - self.warmup_step_count) / ((self.total_step_count - self.warmup_step_count) or 1)
        return self.minimum + (self.learning_rate - self.minimum) * (1 - min(1.0, done)) ** self.power


@dataclass(frozen=True)
class Step(Schedule):
    """learning_rate gamma^(s // step_size): torch's StepLR."""

    learning_rate: float
    step_size: int
    gamma: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_counts(step_size=self.step_size)

    def __call__(self, step: int) -> float:
        return self.learning_rate * self.gamma ** (step // self.step_size)


@dataclass(frozen=True)
class MultiStep(Schedule):
    """learning_rate times gamma for each milestone reached: torch's MultiStepLR."""

    learning_rate: float
    milestones: tuple[int, ...]
    gamma: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "milestones", tuple(sorted(self.milestones)))

    def __call__(self, step: int) -> float:
        return self.learning_rate * self.gamma ** bisect.bisect_right(self.milestones, step)


@dataclass(frozen=True)
class Exponential(Schedule):
    """learning_rate gamma^s: torch's ExponentialLR."""

    learning_rate: float
    gamma: float

    def __call__(self, step: int) -> float:
        return self.learning_rate * self.gamma**step


@dataclass(frozen=True)
class OneCycle(Schedule):
    """Up to learning_rate, then down to far below where it started: torch's OneCycleLR (the rate, not the momentum).

    It starts at learning_rate / div_factor and ends at that divided by final_div_factor, where it stays. With
    `three_phase` it falls back to the start first, as slowly as it rose.
    """

    learning_rate: float
    total_step_count: int
    pct_start: float = 0.3
    anneal: Literal["cos", "linear"] = "cos"
    div_factor: float = 25.0
    final_div_factor: float = 1e4
    three_phase: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_counts(total_step_count=self.total_step_count)
        if not 0 <= self.pct_start <= 1:
            raise OnwardError(f"pct_start must be in [0, 1], not {self.pct_start}")
        if self.anneal not in ("cos", "linear"):
            raise OnwardError(f"anneal={self.anneal!r} is not known; use 'cos' or 'linear'")

    def __call__(self, step: int) -> float:
        start, top = self.learning_rate / self.div_factor, self.learning_rate
        turns = [(0.0, start), (self.pct_start * self.total_step_count - 1, top)]
        if self.three_phase:
            turns.append((2 * self.pct_start * self.total_step_count - 2, start))
        turns.append((self.total_step_count - 1, start / self.final_div_factor))
        phases = list(itertools.pairwise(turns))
        (begin, low), (end, high) = next((phase for phase in phases if step <= phase[1][0]), phases[-1])
        done = min(1.0, (step - begin) / (end - begin)) if end > begin else 1.0
        if self.anneal == "linear":
            return low + (high - low) * done
        return high + (low - high) * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True)
class Warmup(Schedule):
    """Any schedule after a linear warm-up to its first rate."""

    schedule: Schedule
    step_count: int

    def __call__(self, step: int) -> float:
        if step < self.step_count:
            return self.schedule(0) * _warmup(step, self.step_count)
        return self.schedule(step - self.step_count)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "schedule": self.schedule.describe()}

    def state_dict(self) -> dict[str, float]:
        return self.schedule.state_dict()

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self.schedule.load_state_dict(state)


def _warmup(step: int, count: float) -> float:
    return step / max(1, count) if step < count else 1.0


def _require_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise OnwardError(f"{name} must be at least 1, not {count}")

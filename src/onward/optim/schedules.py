"""Learning rates as functions of the step: pure Python, so that a device without onnx can use them.

A schedule is called with the number of updates done so far (0 before the first) and returns the learning rate of the
next one. All but `ReduceOnPlateau` are plain values without state: they resume from the step alone. A warm-up need not
take a whole number of steps.
Formulas are those of torch.optim.lr_scheduler, and for warm-up those of onnxruntime-training and Hugging Face: the
first step of a warm-up has rate 0.
"""

from __future__ import annotations

import bisect
import inspect
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from onward.errors import OnwardError, UnknownNameError
from onward.rate import checked_rate

_RATES = ("learning_rate", "minimum", "min_lr")
_FACTORS = ("gamma", "start_factor", "end_factor", "factor", "power", "cycles")
_DIVISORS = ("div_factor", "final_div_factor")


class Schedule:
    """Base of all schedules."""

    def __post_init__(self) -> None:
        """Refuse options that could only give learning rates that are none."""
        for name, value in vars(self).items():
            if name in _RATES:
                checked_rate(value, name)
            elif name in _FACTORS and not 0 <= value < math.inf:
                raise OnwardError(f"{name} must be a finite number that is not negative, not {value}")
            elif name in _DIVISORS and not 0 < value < math.inf:
                raise OnwardError(f"{name} must be a finite number above 0, not {value}")

    def __call__(self, step: int) -> float:
        """The learning rate after `step` updates."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """The name of the schedule and its options, for programs in other languages."""
        return {"name": type(self).__name__, **vars(self)}

    def state_dict(self) -> dict[str, float]:
        """What has to be saved besides the step, as plain numbers."""
        return {}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Continue from a saved state."""
        if state:
            raise OnwardError(f"{type(self).__name__} has no state, but {sorted(state)} was given")


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


# Schedules by name: what they take where nobody says otherwise, from the number of steps that training will have.
_BY_NAME: dict[str, tuple[type[Schedule], Callable[[int], dict[str, Any]]]] = {
    "constant": (Constant, lambda total: {}),
    "linear": (Linear, lambda total: {"warmup_step_count": 0}),
    "linear_factor": (LinearFactor, lambda total: {}),
    "cosine": (Cosine, lambda total: {}),
    "cosine_restarts": (CosineRestarts, lambda total: {"first_cycle": max(1, math.ceil(total / 4))}),
    "polynomial": (Polynomial, lambda total: {}),
    "step": (Step, lambda total: {"step_size": max(1, math.ceil(total / 3))}),
    "multi_step": (MultiStep, lambda total: {"milestones": (math.ceil(total / 2), math.ceil(total * 3 / 4))}),
    # A hundredth is left in the end.
    "exponential": (Exponential, lambda total: {"gamma": 0.01 ** (1 / max(1, total))}),
    "one_cycle": (OneCycle, lambda total: {}),
    "reduce_on_plateau": (ReduceOnPlateau, lambda total: {}),
}
_WITHOUT_TOTAL = ("constant", "reduce_on_plateau")


def names() -> list[str]:
    """The names that `get` knows."""
    return sorted(_BY_NAME)


def needs_total(name: str) -> bool:
    """Whether a schedule depends on the number of steps that training will have."""
    return name not in _WITHOUT_TOTAL


def get(name: str, learning_rate: float, total_step_count: int | None = None, **options: Any) -> Schedule:
    """The schedule of that name over `total_step_count` steps.

    Options are those of the schedule. Where they are left out, `step` falls at each third of the training, `multi_step`
    at its half and three quarters, `exponential` falls to a hundredth, and `cosine_restarts` has four cycles.
    `warmup_step_count` may be a part of all steps, such as 0.1; schedules that have none of their own are put after it.
    """
    if name not in _BY_NAME:
        raise UnknownNameError(f"there is no schedule {name!r}; there are {', '.join(names())}")
    kind, defaults = _BY_NAME[name]
    known = inspect.signature(kind).parameters
    warmup = options.get("warmup_step_count", 0)
    total = total_step_count
    if isinstance(warmup, float) and warmup < 1:
        if total is None:
            raise OnwardError(f"warmup_step_count={warmup} is a part of all steps, whose number is not known; count it")
        options["warmup_step_count"] = warmup = round(warmup * total)
    if total is None and needs_total(name) and "total_step_count" not in options:
        raise OnwardError(
            f"the schedule {name!r} depends on the number of steps, which is not known here; give it as a value of "
            "onward.optim.schedules, with the numbers that you want"
        )
    wrapped = bool(warmup) and "warmup_step_count" not in known
    if wrapped:
        del options["warmup_step_count"]
        total = None if total is None else max(1, total - warmup)
    elif "warmup_step_count" not in known:
        options.pop("warmup_step_count", None)
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise OnwardError(f"the schedule {name!r} has no option {unknown[0]!r}; it has {', '.join(known)}")
    arguments = {**({} if total is None else defaults(total)), "learning_rate": learning_rate, **options}
    if "total_step_count" in known and total is not None:
        arguments.setdefault("total_step_count", total)
    try:
        schedule = kind(**arguments)
    except TypeError as error:
        raise OnwardError(f"the schedule {name!r} cannot be made of {arguments}: {error}") from error
    return Warmup(schedule, warmup) if wrapped else schedule


def described(description: Mapping[str, Any]) -> Schedule:
    """The schedule of which `describe` said this."""
    kinds: dict[str, type[Schedule]] = {
        kind.__name__: kind for kind in (*(kind for kind, _ in _BY_NAME.values()), Warmup)
    }
    name, options = description.get("name"), {key: value for key, value in description.items() if key != "name"}
    if name not in kinds:
        raise UnknownNameError(f"there is no schedule {name!r}; there are {', '.join(sorted(kinds))}")
    if name == "Warmup" and isinstance(options.get("schedule"), Mapping):
        options["schedule"] = described(options["schedule"])
    try:
        return kinds[name](**options)
    except TypeError as error:
        raise OnwardError(f"the schedule {name!r} cannot be made of {options}: {error}") from error


def _warmup(step: int, count: float) -> float:
    return step / max(1, count) if step < count else 1.0


def _require_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise OnwardError(f"{name} must be at least 1, not {count}")

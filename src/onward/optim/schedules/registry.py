"""Schedules by their names, and from their descriptions."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from onward.errors import OnwardError, UnknownNameError
from onward.optim.schedules.base import Schedule
from onward.optim.schedules.curve import (
    Constant,
    Cosine,
    CosineRestarts,
    Exponential,
    Linear,
    LinearFactor,
    MultiStep,
    OneCycle,
    Polynomial,
    Step,
    Warmup,
)
from onward.optim.schedules.plateau import ReduceOnPlateau

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

"""The learning rate of each update of a `Trainer`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from onward.callbacks.monitor import Monitor
from onward.errors import OnwardError
from onward.optim import schedules
from onward.optim.schedules import ReduceOnPlateau, Schedule, Warmup
from onward.rate import checked_rate

ScheduleLike = str | tuple[str, Mapping[str, Any]] | Schedule | Callable[[int], float]


class Rates:
    """Learning rates by a schedule, or a constant one.

    Args:
        schedule: the name of a schedule, over the steps of each call of `fit`; a name and its options; a schedule or a
            function of the number of updates so far, over all calls.
        learning_rate: what schedules that are named start from.
    """

    def __init__(self, schedule: ScheduleLike | None, learning_rate: float) -> None:
        self.base = learning_rate
        self._options: dict[str, Any] = {}
        self._monitor = Monitor(None)
        self._name: str | None = None
        self._schedule: Callable[[int], float] | None = None
        self._origin = 0  # the update that the schedule begins with
        self._total: int | None = None
        if isinstance(schedule, tuple):
            name, options = schedule
            schedule, self._options = name, dict(options)
        if isinstance(schedule, str):
            self._name = schedule
            if "monitor" in self._options:
                self._monitor = Monitor(self._options.pop("monitor"), self._options.get("mode", "auto"))
                self._options.setdefault("mode", "max" if self._monitor.is_larger_better() else "min")
            # What is wrong with it is said now; the number of steps comes later.
            schedules.get(schedule, learning_rate, 1000, **dict(self._options))
        elif schedule is not None:
            if not callable(schedule) or isinstance(schedule, type):
                raise OnwardError(
                    f"`schedule` is one of {', '.join(schedules.names())}, a pair of such a name and its options, a "
                    f"schedule of onward.optim.schedules or a function of the step, not {schedule!r}"
                )
            self._schedule = schedule

    @property
    def needs_total(self) -> bool:
        """Whether the number of steps of a fit decides the rates."""
        return self._name is not None and schedules.needs_total(self._name)

    def set_base(self, rate: float) -> None:
        """Set the rate that schedules by name start from, and that holds without one."""
        if self._schedule is not None and self._name is None:
            raise OnwardError(f"the learning rate is what {self._schedule!r} says; give another schedule instead")
        self.base = checked_rate(rate, "learning_rate")
        if self._schedule is not None and not self.needs_total:
            self._schedule = self._make()

    def begin(self, step: int, total: int | None) -> None:
        """A fit begins, of so many steps as far as that is known."""
        if self._name is not None:
            self._origin, self._total = step, total
            self._schedule = self._make()

    def _make(self) -> Schedule:
        assert self._name is not None
        return schedules.get(self._name, self.base, self._total, **dict(self._options))

    def at(self, step: int) -> float:
        """The rate of the update after `step` updates."""
        if self._schedule is None:
            return self.base
        try:
            return checked_rate(self._schedule(step - self._origin))
        except ArithmeticError as error:
            raise OnwardError(f"{self._schedule!r} has no learning rate after {step} updates: {error}") from error

    def observe(self, logs: Mapping[str, Any]) -> None:
        """Tell a schedule that waits for a plateau how an epoch went."""
        plateau = _plateau(self._schedule)
        if plateau is not None:
            plateau.observe(self._monitor.value(logs))

    def state_dict(self) -> dict[str, Any]:
        inner = self._schedule.state_dict() if isinstance(self._schedule, Schedule) else {}
        return {"base": self.base, "origin": self._origin, "total": self._total, "schedule": inner}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.base, self._origin, self._total = float(state["base"]), int(state["origin"]), state["total"]
        if self._name is not None:  # of a trainer that has never been fitted, nothing is known yet
            self._schedule = None if self._total is None and self.needs_total else self._make()
        if isinstance(self._schedule, Schedule) and state["schedule"]:
            self._schedule.load_state_dict(state["schedule"])

    def describe(self) -> str:
        """What it is, as far as that can be said: to tell one setting from another."""
        if self._name is not None:
            return f"{self._name} {self._options}" if self._options else self._name
        if self._schedule is None:
            return "none"
        if isinstance(self._schedule, ReduceOnPlateau):
            return "ReduceOnPlateau"
        return repr(self._schedule) if isinstance(self._schedule, Schedule) else "a function"


def _plateau(schedule: Any) -> ReduceOnPlateau | None:
    if isinstance(schedule, Warmup):
        return _plateau(schedule.schedule)
    return schedule if isinstance(schedule, ReduceOnPlateau) else None

"""What all schedules have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from onward.errors import OnwardError
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

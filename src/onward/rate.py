"""What a learning rate may be. Pure Python: schedules and the device runtime use it without onnx."""

from __future__ import annotations

from typing import Any

from onward.errors import OnwardError

_LARGEST = 3.4028234663852886e38  # graphs take it as float32


def checked_rate(rate: Any, what: str = "the learning rate") -> float:
    """A learning rate as a float, or an error: a negative one climbs, and one that is no number ends all training."""
    try:
        number = float(rate)
    except (TypeError, ValueError) as error:
        raise OnwardError(f"{what} must be a number, not {rate!r}") from error
    if not 0 <= number <= _LARGEST:
        raise OnwardError(f"{what} must be a finite number that is not negative, not {rate}")
    return number

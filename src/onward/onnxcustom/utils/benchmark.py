"""How long a statement takes."""

from __future__ import annotations

import timeit
from collections.abc import Mapping
from typing import Any

import numpy as np


def measure_time(
    stmt: str, context: Mapping[str, Any], repeat: int = 10, number: int = 50, div_by_number: bool = False
) -> dict[str, Any]:
    """Seconds that `number` runs of a statement take (or one of them, with `div_by_number`), over `repeat` repetitions.

    Args:
        context: the names that the statement uses.
    """
    seconds = np.array(timeit.Timer(stmt, globals=dict(context)).repeat(repeat=repeat, number=number))
    if div_by_number:
        seconds /= number
    return {
        "average": seconds.mean(),
        "deviation": seconds.std(),
        "min_exec": seconds.min(),
        "max_exec": seconds.max(),
        "repeat": repeat,
        "number": number,
    }

"""A table of the parameters of a model."""

from __future__ import annotations

import math
from collections.abc import Sequence

# Name, what becomes of it, type and shape.
Parameter = tuple[str, str, str, tuple[int, ...]]


def summary(parameters: Sequence[Parameter]) -> str:
    """What is trained, what is frozen, and how large it is."""
    rows = [
        (name, what, dtype, "x".join(map(str, shape)) or "scalar", f"{math.prod(shape):,}")
        for name, what, dtype, shape in parameters
    ]
    table = [("parameter", "", "type", "shape", "numbers"), *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(map(str.ljust, row[:-1], widths)) + "  " + row[-1].rjust(widths[-1]) for row in table]
    trained, frozen = (
        sum(math.prod(shape) for _, what, _, shape in parameters if what == kind) for kind in ("trained", "frozen")
    )
    return "\n".join([*lines, f"{trained:,} numbers are trained, {frozen:,} are frozen"])

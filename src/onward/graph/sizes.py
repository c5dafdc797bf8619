"""Arithmetic with sizes that have names: `batch` images of 36 pixels have `batch*36`.

Equal names are equal sizes. onnxruntime writes a result over an operand only if it knows that they are of one size, so
sizes without a name cost memory and time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from onward.graph.shapes import Dim

_WORD = re.compile(r"\w+")
_PRODUCT = re.compile(r"[A-Za-z_]\w*(\*\w+)+")


def product(sizes: Sequence[Dim]) -> Dim:
    """The product of sizes, None if one is unknown."""
    return quotient(sizes, [])


def quotient(sizes: Sequence[Dim], divisors: Sequence[Dim]) -> Dim:
    """The product of sizes by that of divisors, None if it is unknown, or not whole for all values of the names.

    A negative multiple of names (of -1 in a target, for instance) is no size.
    """
    names: list[str] = []
    number = 1
    for size in sizes:
        own, factor = _factors(size)
        names += own
        number *= factor
    divisor = 1
    for size in divisors:
        own, factor = _factors(size)
        divisor *= factor
        for name in own:
            if name not in names:
                return None
            names.remove(name)
    if None in sizes or None in divisors or not divisor or number % divisor:
        return None
    number //= divisor
    if not names or not number:
        return number
    if number < 0:
        return None
    if len(names) == 1 and number == 1:
        return names[0]
    words = [name if _WORD.fullmatch(name) else f"({name})" for name in sorted(names)]
    return "*".join([*words, *([str(number)] if number > 1 else [])])


def _factors(size: Dim) -> tuple[list[str], int]:
    """The names and the number that a size is the product of."""
    if size is None or isinstance(size, int):
        return [], 1 if size is None else size
    if not _PRODUCT.fullmatch(size):
        return [size], 1
    parts = size.split("*")
    return [part for part in parts if not part.isdigit()], math.prod(int(part) for part in parts if part.isdigit())

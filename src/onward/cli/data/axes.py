"""How the axes of an array become those that an input has: as they are, moved, or cut otherwise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Dim = int | str | None
_MOVES = ((0, 3, 1, 2), (0, 2, 3, 1), (0, 2, 1))


@dataclass(frozen=True)
class Arrangement:
    """What is done to rows of one shape; `said` is that for people."""

    said: str = ""
    order: tuple[int, ...] | None = None
    inner: tuple[int, ...] | None = None

    def apply(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if self.order is not None:
            return array.transpose(self.order)
        return array if self.inner is None else array.reshape(len(array), *self.inner)


def arrange(shape: Sequence[int], wanted: Sequence[Dim] | None) -> Arrangement | None:
    """How rows of `shape` can be fed to an input of shape `wanted`; None if they cannot."""
    shape = tuple(shape)
    if wanted is None or _admits(wanted, shape):
        return Arrangement()
    if len(wanted) == len(shape) + 1:
        for place in dict.fromkeys((1, len(shape))):  # channels first, then last
            longer = (*shape[:place], 1, *shape[place:])
            if _admits(wanted, longer) and wanted[place] in (1, None):
                return Arrangement("with an axis of one channel" if len(shape) > 2 else "", None, longer[1:])
    if len(shape) == len(wanted) + 1 and 1 in shape[1:]:
        place = shape.index(1, 1)
        shorter = (*shape[:place], *shape[place + 1 :])
        if _admits(wanted, shorter):
            return Arrangement("", None, shorter[1:])
    for order in _MOVES:
        if len(order) == len(shape) and _admits(wanted, [shape[axis] for axis in order]):
            return Arrangement(f"axes in the order {', '.join(map(str, order))}", order)
    inner = [size for size in wanted[1:] if isinstance(size, int)]
    is_flat = len(shape) == 2 or len(wanted) == 2
    if is_flat and len(inner) == len(wanted) - 1 and math.prod(inner) == math.prod(shape[1:]):
        return Arrangement(f"reshaped to [{', '.join(map(str, inner))}]", None, tuple(inner))
    return None


def _admits(wanted: Sequence[Dim], shape: Sequence[int]) -> bool:
    return len(wanted) == len(shape) and all(
        not isinstance(size, int) or size == given for size, given in zip(wanted[1:], shape[1:], strict=True)
    )

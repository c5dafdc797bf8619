"""How far parameters have come from where they started."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from onward.report.content import Movement

# So many elements of each parameter are remembered: a copy of all would be as large as the model.
SAMPLE = 2**14


class Start:
    """Some elements of each parameter as they were before training; all of those that have few."""

    def __init__(self, parameters: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """`parameters` are arrays by what becomes of them, and by name."""
        self._kinds = {name: kind for kind, arrays in parameters.items() for name in arrays}
        self._samples = {name: _sample(array) for arrays in parameters.values() for name, array in arrays.items()}

    def movements(self, now: Callable[[str], np.ndarray]) -> list[Movement]:
        """How far each parameter has come; `now` says what it is."""
        return [self._movement(name, now(name)) for name in self._samples]

    def _movement(self, name: str, array: np.ndarray) -> Movement:
        before = self._samples[name].astype(np.float64)
        difference = _sample(array).astype(np.float64) - before
        distance, length = float(np.linalg.norm(difference)), float(np.linalg.norm(before))
        relative = distance / length if length else math.inf if distance else 0.0
        typical = distance / math.sqrt(max(before.size, 1))
        return Movement(name, self._kinds[name], array.shape, relative, typical, before.size)


def _sample(array: np.ndarray) -> np.ndarray:
    """A copy of a few elements, the same ones of every array of that size."""
    flat = array.reshape(-1)
    if flat.size <= SAMPLE:
        return flat.copy()
    return flat[np.random.default_rng(0).integers(0, flat.size, SAMPLE)]

"""Rows that are read from files: all at once if they fit into memory easily, and else when they are needed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_IN_MEMORY = 2**30  # bytes


class Rows:
    """An array whose rows are read from files, for as long as a batch needs them."""

    reads_rows = True  # what the Trainer knows such arrays by

    def __init__(
        self, names: Array, inner: tuple[int, ...], dtype: np.dtype[Any], read: Callable[[str], Array]
    ) -> None:
        self._names, self._read = names, read
        self.shape = (len(names), *inner)
        self.dtype = dtype

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, rows: Any) -> Array:
        names = np.atleast_1d(self._names[rows])
        made = np.empty((len(names), *self.shape[1:]), self.dtype)
        for place, name in enumerate(names):
            made[place] = self._read(name)
        return made

    def loaded(self) -> Array | Rows:
        """The array itself, if it is small."""
        return self[:] if math.prod(self.shape) * self.dtype.itemsize <= _IN_MEMORY else self

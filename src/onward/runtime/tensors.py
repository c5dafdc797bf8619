"""Named tensors in contiguous buffers, each a view that onnxruntime reads and writes in place."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

import numpy as np
import onnxruntime

ROW = 1024  # a buffer is a whole number of such rows, so that it can be seen as a matrix
_ALIGNMENT = 64  # bytes: a cache line, and as wide as the widest vector instructions

Layout = Mapping[str, tuple[tuple[int, ...], np.dtype]]


class FlatTensors(Mapping[str, np.ndarray]):
    """A mapping from names to arrays; all arrays of one dtype are views of one buffer.

    Between the tensors are a few unused elements, so that each begins on a cache line; they stay zero under every
    elementwise update that maps zeros to zeros.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = dict(layout)
        self.buffers: dict[np.dtype, np.ndarray] = {}
        self.offsets: dict[str, int] = {}
        ends: dict[np.dtype, int] = {}
        for name, (shape, dtype) in self.layout.items():
            step = max(1, _ALIGNMENT // dtype.itemsize)
            self.offsets[name] = ends.get(dtype, 0)
            ends[dtype] = self.offsets[name] + -(-math.prod(shape) // step) * step
        for dtype, size in ends.items():
            self.buffers[dtype] = _aligned_zeros(-(-size // ROW) * ROW, dtype)
        self._views = {name: self._view(name) for name in self.layout}
        self._values: dict[str, onnxruntime.OrtValue] = {}

    @classmethod
    def holding(cls, arrays: Mapping[str, np.ndarray]) -> FlatTensors:
        """A copy of these arrays."""
        tensors = cls({name: (array.shape, array.dtype) for name, array in arrays.items()})
        for name, array in arrays.items():
            tensors[name][...] = array
        return tensors

    def zeros_like(self) -> FlatTensors:
        """Zeros of the same layout."""
        return FlatTensors(self.layout)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._views[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)

    def ortvalue(self, name: str) -> onnxruntime.OrtValue:
        """The tensor as onnxruntime sees it: the same memory, no copy."""
        if name not in self._values:
            self._values[name] = onnxruntime.OrtValue.ortvalue_from_numpy(self._views[name])
        return self._values[name]

    def runs(self, names: Collection[str]) -> Iterator[tuple[np.dtype, int, int]]:
        """The parts of the buffers that hold these tensors and no others: dtype, from, to; as few as possible."""
        for dtype in self.buffers:
            ordered = [name for name in self.layout if self.layout[name][1] == dtype]
            start: int | None = None
            for name in ordered:
                if name in names:
                    start = self.offsets[name] if start is None else start
                    end = self.offsets[name] + math.prod(self.layout[name][0])
                elif start is not None:
                    yield dtype, start, end
                    start = None
            if start is not None:
                yield dtype, start, end

    def _view(self, name: str) -> np.ndarray:
        shape, dtype = self.layout[name]
        offset = self.offsets[name]
        return self.buffers[dtype][offset : offset + math.prod(shape)].reshape(shape)


def _aligned_zeros(size: int, dtype: np.dtype) -> np.ndarray:
    raw = np.zeros(size * dtype.itemsize + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size * dtype.itemsize].view(dtype)

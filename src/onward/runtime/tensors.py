"""Named tensors in contiguous buffers, each a view that onnxruntime reads and writes in place."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import onnxruntime

from onward.runtime import dlpack
from onward.runtime.device import HOST, Device
from onward.runtime.tensorfile import numpy_dtype

ROW = 1024  # a buffer is a whole number of such rows, so that it can be seen as a matrix
_ALIGNMENT = 64  # bytes: a cache line, and as wide as the widest vector instructions
_BFLOAT16 = 16  # its number in onnx.TensorProto.DataType

Layout = Mapping[str, tuple[tuple[int, ...], np.dtype]]


class FlatTensors(Mapping[str, np.ndarray]):
    """A mapping from names to arrays; all tensors of one dtype are views of one buffer, on one device.

    In main memory the arrays are live views; on other devices they are copies, to be changed with `assign`.
    Between the tensors are a few unused elements, so that each begins on a cache line; they stay zero under every
    elementwise update that maps zeros to zeros.
    """

    def __init__(self, layout: Layout, device: Device = HOST) -> None:
        self.layout = dict(layout)
        self.device = device
        self.offsets: dict[str, int] = {}
        ends: dict[np.dtype, int] = {}
        for name, (shape, dtype) in self.layout.items():
            step = max(1, _ALIGNMENT // dtype.itemsize)
            self.offsets[name] = ends.get(dtype, 0)
            ends[dtype] = self.offsets[name] + -(-math.prod(shape) // step) * step
        self._buffers: dict[np.dtype, _HostBuffer | _DeviceBuffer] = {}
        for dtype, size in ends.items():
            whole = -(-size // ROW) * ROW
            self._buffers[dtype] = (_HostBuffer if device.is_host else _DeviceBuffer)(whole, dtype, device)
        self._values: dict[str, onnxruntime.OrtValue] = {}

    @classmethod
    def holding(cls, arrays: Mapping[str, np.ndarray], device: Device = HOST) -> FlatTensors:
        """A copy of these arrays."""
        tensors = cls({name: (array.shape, array.dtype) for name, array in arrays.items()}, device)
        for name, array in arrays.items():
            tensors.assign(name, array)
        return tensors

    def zeros_like(self) -> FlatTensors:
        """Zeros of the same layout on the same device."""
        return FlatTensors(self.layout, self.device)

    def __getitem__(self, name: str) -> np.ndarray:
        shape, dtype = self.layout[name]
        return self._buffers[dtype].array(self.offsets[name], shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout)

    def __len__(self) -> int:
        return len(self.layout)

    def __contains__(self, name: object) -> bool:
        return name in self.layout

    def assign(self, name: str, array: np.ndarray) -> None:
        """Copy an array of the same shape into a tensor."""
        shape, dtype = self.layout[name]
        self._buffers[dtype].write(self.offsets[name], np.asarray(array, dtype).reshape(shape))

    def fill(self, value: float) -> None:
        """Set every element of every tensor; what is between them stays zero."""
        for name, (shape, dtype) in self.layout.items():
            self.assign(name, np.full(shape, value, dtype))

    def add(self, other: FlatTensors) -> None:
        """Add tensors of the same layout, in main memory."""
        for dtype in self._buffers:
            mine = self.whole_array(dtype)
            np.add(mine, other.whole_array(dtype), out=mine)

    def norm(self) -> float:
        """The root of the sum of the squares of all elements, in main memory."""
        with np.errstate(over="ignore", invalid="ignore"):
            return math.sqrt(sum(_squares(buffer.array(0, (buffer.size,))) for buffer in self._buffers.values()))

    @property
    def dtypes(self) -> list[np.dtype]:
        return list(self._buffers)

    def ortvalue(self, name: str) -> onnxruntime.OrtValue:
        """The tensor as onnxruntime sees it: the same memory, no copy."""
        if name not in self._values:
            shape, dtype = self.layout[name]
            self._values[name] = self._buffers[dtype].value(self.offsets[name], shape)
        return self._values[name]

    def chunk(self, dtype: np.dtype, start: int, end: int) -> onnxruntime.OrtValue:
        """A part of the buffer of one dtype, as one long row."""
        return self._buffers[dtype].value(start, (end - start,))

    def part(self, dtype: np.dtype, start: int, end: int) -> np.ndarray:
        """The same as an array, in main memory."""
        return self._buffers[dtype].array(start, (end - start,))

    def whole(self, dtype: np.dtype) -> onnxruntime.OrtValue:
        """The whole buffer of one dtype, as one long row."""
        buffer = self._buffers[dtype]
        return buffer.value(0, (buffer.size,))

    def whole_array(self, dtype: np.dtype) -> np.ndarray:
        """The same as an array, in main memory."""
        buffer = self._buffers[dtype]
        return buffer.array(0, (buffer.size,))

    def rows(self, dtype: np.dtype) -> onnxruntime.OrtValue:
        """The whole buffer of one dtype as a matrix."""
        buffer = self._buffers[dtype]
        return buffer.value(0, (buffer.size // ROW, ROW))

    def runs(self, names: Collection[str]) -> Iterator[tuple[np.dtype, int, int]]:
        """The parts of the buffers that hold these tensors and no others: dtype, from, to; as few as possible."""
        for dtype in self._buffers:
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


class _HostBuffer:
    """Zeros in main memory."""

    def __init__(self, size: int, dtype: np.dtype, _: Device) -> None:
        raw = np.zeros(size * dtype.itemsize + _ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % _ALIGNMENT
        self._array = raw[start : start + size * dtype.itemsize].view(dtype)
        self.size = size

    def array(self, offset: int, shape: tuple[int, ...]) -> np.ndarray:
        return self._array[offset : offset + math.prod(shape)].reshape(shape)

    def write(self, offset: int, array: np.ndarray) -> None:
        self.array(offset, array.shape)[...] = array

    def value(self, offset: int, shape: tuple[int, ...]) -> onnxruntime.OrtValue:
        return value_of(self.array(offset, shape))


class _DeviceBuffer:
    """Zeros in memory of a device."""

    def __init__(self, size: int, dtype: np.dtype, device: Device) -> None:
        self._value = onnxruntime.OrtValue.ortvalue_from_shape_and_type([size], dtype, device.ort_name, device.index)
        self._value.update_inplace(np.zeros(size, dtype))
        self._dtype, self._device = dtype, device
        self.size = size

    def array(self, offset: int, shape: tuple[int, ...]) -> np.ndarray:
        return np.array(self.value(offset, shape).numpy())

    def write(self, offset: int, array: np.ndarray) -> None:
        if array.size:
            self.value(offset, array.shape).update_inplace(np.ascontiguousarray(array))

    def value(self, offset: int, shape: tuple[int, ...]) -> onnxruntime.OrtValue:
        return dlpack.view(self._value, offset, shape, self._dtype, self._device)


def _squares(x: np.ndarray) -> float:
    """The sum of squares of a buffer: of rows in float32, and once more in double should that overflow.

    Not with BLAS, which wakes its threads for it: in a short step, that takes longer than the sum.
    """
    kind = np.float64 if x.dtype.itemsize > 4 else np.float32
    rows: Any = x.reshape(-1, ROW).astype(kind, copy=False)
    total = float(np.einsum("ij,ij->i", rows, rows).sum(dtype=np.float64))
    return total if math.isfinite(total) else sum(float(np.square(row, dtype=np.float64).sum()) for row in rows)


def array_of(value: onnxruntime.OrtValue | np.ndarray) -> np.ndarray:
    """What a tensor of onnxruntime holds; an array is returned as it is."""
    if isinstance(value, np.ndarray):
        return value
    if value.data_type() != "tensor(bfloat16)":
        return value.numpy()
    # numpy lacks the type, and onnxruntime does not know that of ml_dtypes.
    shape = value.shape()
    content = ctypes.string_at(value.data_ptr(), 2 * math.prod(shape))
    return np.frombuffer(bytearray(content), numpy_dtype("bfloat16")).reshape(shape)


def value_of(array: np.ndarray) -> onnxruntime.OrtValue:
    """A contiguous array as onnxruntime sees it: the same memory, which the caller keeps alive."""
    if array.dtype.name == "bfloat16":  # a type of ml_dtypes, which onnxruntime does not know
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), _BFLOAT16)
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)

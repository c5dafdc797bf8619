"""Read and write safetensors files one tensor at a time, of any size.

The format is 8 bytes with the length of a header, the header (JSON: types, shapes, positions and texts), and the bytes
of the tensors. The safetensors package would hold a second copy of everything in memory, and has no bfloat16 for numpy.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from onward import document
from onward.document import DamagedError, Document
from onward.errors import OnwardError
from onward.runtime.files import replacing

_METADATA = "__metadata__"
_ALIGNMENT = 8
_MOST_ELEMENTS = 2**58  # numpy's limit of 2^63 bytes, for any type; it counts sizes of zero as one
_LONGEST_HEADER = 100_000_000  # the limit of the safetensors package

_TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _TYPES.items()}


class NotATensorFileError(OnwardError):
    """The file is not in the safetensors format."""


@dataclass(frozen=True)
class Entry:
    """A tensor to be written: what it is, and how to get it when its turn comes."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]


def dtype_called(name: str) -> np.dtype:
    """The numpy type of "F32" and the like."""
    if name not in _TYPES:
        raise OnwardError(f"tensors of type {name} are not supported")
    return numpy_dtype(_TYPES[name])


def numpy_dtype(name: str) -> np.dtype:
    """The numpy type of this name, of which numpy itself lacks bfloat16."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise OnwardError("bfloat16 tensors need the package ml_dtypes: pip install ml_dtypes") from error
    return np.dtype(ml_dtypes.bfloat16)


def name_of(dtype: np.dtype) -> str:
    """What the format calls a numpy type."""
    if dtype.name not in _NAMES:
        raise OnwardError(f"tensors of type {dtype} cannot be saved")
    return _NAMES[dtype.name]


def write(path: str | os.PathLike[str], entries: Iterable[Entry], metadata: Mapping[str, str]) -> None:
    """Write a file atomically."""
    # Wide types first, so that every tensor is aligned.
    ordered = sorted(entries, key=lambda entry: -entry.dtype.itemsize)
    header: dict[str, Any] = {_METADATA: dict(metadata)}
    position = 0
    for entry in ordered:
        if entry.name in header:
            raise OnwardError(f"two tensors of the file would be called {entry.name!r}; rename the parameter")
        end = position + math.prod(entry.shape) * entry.dtype.itemsize
        header[entry.name] = {
            "dtype": name_of(entry.dtype),
            "shape": list(entry.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with replacing(path) as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for entry in ordered:
            file.write(np.ascontiguousarray(entry.read()).reshape(-1).view(np.uint8).data)


class TensorFile:
    """An open safetensors file: its texts, and tensors that are read when asked for."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.metadata: dict[str, str] = {}
        self.types: dict[str, tuple[tuple[int, ...], str]] = {}
        self._places: dict[str, tuple[int, ...]] = {}
        self._file: IO[bytes] = open(self.path, "rb")  # noqa: SIM115  closed by __exit__
        try:
            self._read_header()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def _read_header(self) -> None:
        size = os.fstat(self._file.fileno()).st_size
        length = int.from_bytes(self._file.read(8), "little")
        if size < 8 or not 2 <= length <= _LONGEST_HEADER:
            raise NotATensorFileError(f"{str(self.path)!r} is not a safetensors file")
        opening = self._file.read(1)
        if opening != b"{":
            raise NotATensorFileError(f"{str(self.path)!r} is not a safetensors file")
        if size < 8 + length:
            raise self._truncated()
        try:
            header = document.parse(opening + self._file.read(length - 1), str(self.path))
            self.metadata = header.mapping(_METADATA, Document.text) if header.has(_METADATA) else {}
            self._start = 8 + length
            for name in header:
                if name != _METADATA:
                    entry = header.inside(name)
                    self.types[name] = (entry.shape("shape"), entry.text("dtype"))
                    self._places[name] = entry.shape("data_offsets")
        except DamagedError as error:
            raise NotATensorFileError(f"{str(self.path)!r} is not a safetensors file: {error}") from error
        self._check_places(size - self._start)

    def _check_places(self, size: int) -> None:
        """See that the tensors fill the file one after the other, as the format demands: no overlaps, no holes."""
        position = 0
        for name, place in sorted(self._places.items(), key=lambda item: item[1]):
            shape, type_name = self.types[name]
            length = math.prod(shape) * dtype_called(type_name).itemsize
            if math.prod(size or 1 for size in shape) >= _MOST_ELEMENTS:
                raise OnwardError(f"{str(self.path)!r} is damaged: {name!r} has the shape {list(shape)}")
            if place != (position, position + length):
                raise OnwardError(
                    f"{str(self.path)!r} is damaged: {name!r}, {type_name} {list(shape)}, should be at "
                    f"{position} to {position + length}, not at {list(place)}"
                )
            position += length
        if position > size:
            raise self._truncated()
        if position < size:
            raise OnwardError(f"{str(self.path)!r} is damaged: {size - position} bytes after its last tensor")

    def read(self, name: str) -> np.ndarray:
        """One tensor."""
        shape, type_name = self.types[name]
        array = np.empty(shape, dtype_called(type_name))
        self._file.seek(self._start + self._places[name][0])
        if self._file.readinto(array.reshape(-1).view(np.uint8).data) != array.nbytes:  # type: ignore[attr-defined]
            raise self._truncated()
        return array

    def _truncated(self) -> OnwardError:
        return OnwardError(f"{str(self.path)!r} is truncated: it ends before its last tensor. Use an older copy of it.")

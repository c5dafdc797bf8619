"""Serialized tensors of ONNX models (TensorProto): what they are, where their contents are, and how to write them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from onward.location import read_inside
from onward.runtime.protobuf import (
    Buffer,
    encode_bytes,
    encode_number,
    encode_text,
    fields,
    first,
    number,
    numbers,
    payloads,
    text,
)

# Field numbers of onnx.proto.
NAME = 8
_DIMS, _TYPE, _RAW, _EXTERNAL_DATA, _DATA_LOCATION = 1, 2, 9, 13, 14
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
_EXTERNAL = 1

TENSOR_TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9,
    "float16": 10, "float64": 11, "uint32": 12, "uint64": 13, "bfloat16": 16,
}  # fmt: skip
_BYTES = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 16: 2}
_HIGHEST_RANK = 64  # of numpy


@dataclass(frozen=True)
class Place:
    """Where the contents of a tensor are; a length of None is up to the end of the file."""

    location: str
    offset: int
    length: int | None


def check(tensor: memoryview) -> None:
    """Raise ValueError where a tensor is damaged: nothing below does so for one that passes."""
    _, shape = type_of(tensor)
    if len(shape) > _HIGHEST_RANK or any(size < 0 for size in shape):
        raise ValueError(f"a tensor has the shape {list(shape)[:_HIGHEST_RANK]}")
    if is_external(tensor):
        place_of(tensor)


def type_of(tensor: memoryview) -> tuple[int, tuple[int, ...]]:
    """Element type (a number of onnx.TensorProto.DataType) and shape."""
    kind = first(tensor, _TYPE)
    dims = (size for payload in payloads(tensor, _DIMS) for size in numbers(payload))
    return 0 if kind is None else number(kind), tuple(dims)


def is_external(tensor: memoryview) -> bool:
    """Whether the contents are in another file."""
    return any(number(payload) == _EXTERNAL for payload in payloads(tensor, _DATA_LOCATION))


def place_of(tensor: memoryview) -> Place:
    """Where the contents of an external tensor are."""
    entries = {text(entry, _ENTRY_KEY): text(entry, _ENTRY_VALUE) for entry in payloads(tensor, _EXTERNAL_DATA)}
    length = entries.get("length")
    place = Place(entries.get("location", ""), int(entries.get("offset", 0)), None if length is None else int(length))
    expected = _size(tensor)
    if place.length is None:
        place = Place(place.location, place.offset, expected)
    if place.offset < 0 or (place.length or 0) < 0 or (expected is not None and place.length != expected):
        raise ValueError(f"a tensor of {expected} bytes is said to be {place.length} bytes at {place.offset}")
    return place


def _size(tensor: memoryview) -> int | None:
    """How many bytes the contents of a tensor are, where each element takes whole ones."""
    kind, shape = type_of(tensor)
    return math.prod(shape) * _BYTES[kind] if kind in _BYTES and len(shape) <= _HIGHEST_RANK else None


def raw_data(tensor: memoryview, folder: Path) -> Buffer | None:
    """The bytes of a tensor, where they are stored as such; None where its file is not there."""
    if not is_external(tensor):
        return first(tensor, _RAW)
    place = place_of(tensor)
    try:
        return read_inside(folder, place.location, place.offset, place.length)
    except FileNotFoundError:
        return None


def encode(name: str, array: np.ndarray) -> bytes:
    """A tensor with its contents."""
    contents = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return b"".join([*_header(name, array), *encode_bytes(_RAW, contents)])


def encode_external(name: str, array: np.ndarray, location: str, offset: int) -> bytes:
    """A tensor whose contents are in a file."""
    return b"".join([*_header(name, array), *_encode_place(location, offset, array.nbytes)])


def moved_here(tensor: memoryview, contents: Buffer) -> bytes:
    """An external tensor with its contents."""
    return b"".join([*_without_place(tensor), *encode_bytes(_RAW, contents)])


def moved(tensor: memoryview, location: str, offset: int, length: int) -> bytes:
    """An external tensor in another place."""
    return b"".join([*_without_place(tensor), *_encode_place(location, offset, length)])


def _header(name: str, array: np.ndarray) -> list[Buffer]:
    dims = [part for size in array.shape for part in encode_number(_DIMS, size)]
    return [*dims, *encode_number(_TYPE, TENSOR_TYPES[array.dtype.name]), *encode_text(NAME, name)]


def _without_place(tensor: memoryview) -> Iterator[Buffer]:
    return (whole for number, _, whole in fields(tensor) if number not in (_RAW, _EXTERNAL_DATA, _DATA_LOCATION))


def _encode_place(location: str, offset: int, length: int) -> list[Buffer]:
    parts: list[Buffer] = []
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        entry = [*encode_text(_ENTRY_KEY, key), *encode_text(_ENTRY_VALUE, value)]
        parts += encode_bytes(_EXTERNAL_DATA, b"".join(entry))
    return [*parts, *encode_number(_DATA_LOCATION, _EXTERNAL)]

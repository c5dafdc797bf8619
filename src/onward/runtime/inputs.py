"""What callers feed: arrays, tensors of onnxruntime or plain numbers, seen as what a model takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime

from onward.errors import OnwardError
from onward.runtime.session import NUMPY_TYPES, type_name


def as_value(value: Any) -> Any:
    """onnxruntime's native tensors as its Python ones; anything else as it is."""
    is_native = type(value).__name__ == "OrtValue" and not isinstance(value, onnxruntime.OrtValue)
    return onnxruntime.OrtValue(value) if is_native else value


def is_value(value: Any) -> bool:
    """Whether this is a tensor of onnxruntime."""
    return isinstance(as_value(value), onnxruntime.OrtValue)


def checked_input(expected: Any, declared: Sequence[Any] | None, value: Any) -> Any:
    """An input as an array or OrtValue of the type and shape that the model takes."""
    name = expected.name
    value = as_value(value)
    if isinstance(value, onnxruntime.OrtValue):
        kind, shape = value.data_type(), tuple(value.shape())
    elif value is None:
        raise OnwardError(f"input {name!r} is None, but the model needs it")
    else:
        wanted = NUMPY_TYPES.get(expected.type)
        array = np.asarray(value)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        if not isinstance(value, np.ndarray) and wanted is not None and _is_plain(array, wanted):
            array = array.astype(wanted)  # numbers of Python have no type of their own
        if expected.type == "tensor(string)" and array.dtype.kind in "OSUT":
            array = array.astype(str) if array.dtype.kind in "ST" else array
            kind = expected.type
        else:
            kind = type_name(array.dtype)
        value = np.ascontiguousarray(array).reshape(array.shape)
        shape = value.shape
    if kind != expected.type:
        hint = f"; convert it with .astype(np.{NUMPY_TYPES[expected.type]})" if expected.type in NUMPY_TYPES else ""
        raise OnwardError(f"input {name!r} must be {expected.type}, not {kind}{hint}")
    if declared is not None and not _fits(shape, declared):
        raise OnwardError(f"input {name!r} must have shape {declared}, not {list(shape)}")
    return value


def shape_of_value(value: Any) -> Sequence[int]:
    """The shape of an array or of a tensor of onnxruntime."""
    return value.shape if isinstance(value, np.ndarray) else value.shape()


def _fits(shape: Sequence[int], expected: Sequence[Any]) -> bool:
    """Whether a shape agrees with one that has symbols in it."""
    if len(shape) != len(expected):
        return False
    return all(not isinstance(wanted, int) or wanted == size for size, wanted in zip(shape, expected, strict=True))


def _is_plain(array: np.ndarray, wanted: np.dtype) -> bool:
    return array.dtype.kind in "biuf" and np.can_cast(array.dtype, wanted, "same_kind")

"""onnxruntime's own values, vectors of them and devices, as its extension module has them.

Programs written for its training build hand these to each other, not the classes of Python around them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.capi import _pybind_state as _extension

OrtValue = _extension.OrtValue
OrtValueVector = _extension.OrtValueVector
OrtDevice = _extension.OrtDevice

_OF_PYTHON = onnxruntime.OrtValue


def value_from_array(array: np.ndarray, device: Any) -> Any:
    """A value with a copy of `array` of its own: one made over an array does not keep it alive."""
    array = np.ascontiguousarray(array).reshape(array.shape)  # a scalar stays one
    value = OrtValue.ortvalue_from_shape_and_type(list(array.shape), array.dtype, device)
    value.update_inplace(array)
    return value


def as_value(tensor: Any, device: Any) -> Any:
    """`tensor`, an array or either kind of OrtValue, as a value of the extension module; None for anything else."""
    if isinstance(tensor, OrtValue):
        return tensor
    if isinstance(tensor, _OF_PYTHON):
        return tensor._ortvalue
    return value_from_array(tensor, device) if isinstance(tensor, np.ndarray) else None


def vector_of(values: Sequence[Any]) -> Any:
    """Values as the vector that onnxruntime takes and returns."""
    vector = OrtValueVector()
    vector.reserve(len(values))
    for value in values:
        vector.push_back(value)
    return vector


def run(session: onnxruntime.InferenceSession, feeds: Mapping[str, Any], outputs: Sequence[str], device: Any) -> Any:
    """The outputs of a run, on `device`."""
    return run_into(session, feeds, dict.fromkeys(outputs), device)


def run_into(
    session: onnxruntime.InferenceSession, feeds: Mapping[str, Any], outputs: Mapping[str, Any], device: Any
) -> Any:
    """The outputs of a run, each written into the value given for it, or into a new one where that is None.

    The value may be one of the inputs, where no node reads that after the output is written.
    """
    binding = session.io_binding()._iobinding
    for name, value in feeds.items():
        binding.bind_ortvalue_input(name, value)
    for name, value in outputs.items():
        if value is None:
            binding.bind_output(name, device)
        else:
            binding.bind_ortvalue_output(name, value)
    session._sess.run_with_iobinding(binding, None)
    return binding.get_outputs()


def wrapped(value: Any) -> onnxruntime.OrtValue:
    """A value of the extension module as Python's."""
    return onnxruntime.OrtValue(value)

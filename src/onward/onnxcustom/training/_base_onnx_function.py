"""Objects that compute with small ONNX graphs on onnxruntime's own values."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from onward.onnxcustom.training._base import BaseOnnxClass
from onward.onnxcustom.training.excs import ProviderError, UnsupportedError, WrongTypeError, WrongValueError
from onward.onnxcustom.utils.onnxruntime_helper import device_to_providers, get_ort_device, ort_device_to_string
from onward.runtime.session import NUMPY_TYPES, default_options, open_session
from onward.runtime.values import as_value


class BaseLearningOnnx(BaseOnnxClass):
    """Base of learning rates, losses and penalties.

    Attributes that end with an underscore are made by `build_onnx_function`: they are not pickled, but made again.
    """

    _arguments: tuple[Any, ...] | None = None  # of build_onnx_function, the device as text

    def build_onnx_function(self, opset: int, device: Any, *args: Any) -> None:
        """Make the graphs, and the sessions that run them on `device`."""
        raise UnsupportedError(f"{type(self).__name__} does not say what it computes: it has no build_onnx_function")

    def _remember(self, opset: int, device: Any, *args: Any) -> None:
        """Keep the arguments of `build_onnx_function`, for when this is unpickled."""
        self._arguments = (opset, ort_device_to_string(device), *args)

    def __getstate__(self) -> dict[str, Any]:
        """Parameters, and numbers such as the present rate; no graphs and no sessions."""
        kept = (numbers.Number, str, type(None))
        return {name: value for name, value in vars(self).items() if not name.endswith("_") or isinstance(value, kept)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        if self._arguments is not None:
            opset, device, *rest = self._arguments
            self.build_onnx_function(opset, get_ort_device(device), *rest)

    def __repr_extended__(self) -> str:
        return ""

    def __repr__(self) -> str:
        known = [(name, default) for name, default in self._get_param_names() if name in vars(self)]
        shown = [f"{name}={getattr(self, name)!r}" for name, default in known if default is not inspect.Parameter.empty]
        return f"{type(self).__name__}({', '.join(shown)}){self.__repr_extended__()}"


def session_of(model: onnx.ModelProto, device: Any) -> Any:
    """A session that runs a small graph on a device."""
    options = default_options()
    options.intra_op_num_threads = 1  # what such a graph does is over before another thread has woken up
    return open_session(model.SerializeToString(), options=options, providers=device_to_providers(device))


def value_on(tensor: Any, device: Any, what: str) -> Any:
    """An array or an OrtValue of either kind as onnxruntime's own value."""
    if isinstance(tensor, np.ndarray) and ort_device_to_string(device) != "cpu":
        raise ProviderError(f"{what} is an array in main memory, and training takes place on another device")
    value = as_value(tensor, device)
    if value is None:
        raise WrongTypeError(f"{what} is {type(tensor).__name__}; it must be an array or an OrtValue")
    return value


def changeable(tensor: Any, what: str) -> Any:
    """An OrtValue of either kind as onnxruntime's own value, to be written to."""
    if isinstance(tensor, np.ndarray):
        raise WrongTypeError(f"{what} is changed in place; give an OrtValue, not an array")
    return value_on(tensor, None, what)


def dtype_of(value: Any) -> np.dtype:
    """The numpy type of a value of onnxruntime."""
    return NUMPY_TYPES[value.data_type()]


def one_dtype(arrays: Sequence[np.ndarray], names: Sequence[str]) -> np.dtype:
    """The type that trained weights have, all of them."""
    kinds = {name: array.dtype for name, array in zip(names, arrays, strict=True)}
    if len(set(kinds.values())) > 1:
        raise WrongValueError(f"the weights to train have several types, {kinds}; train those of one type")
    return next(iter(kinds.values()), np.dtype(np.float32))

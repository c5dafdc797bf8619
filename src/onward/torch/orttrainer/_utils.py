"""Names of states, and types of torch, numpy and ONNX; called as in the original, whose users import it."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import onnx
import torch

from onward.torch.orttrainer.refusal import InvalidValueError, require

Function = TypeVar("Function", bound=Callable[..., Any])

MODEL, OPTIMIZER, STEP_INFO = "model", "optimizer", "train_step_info"
GRADIENTS = "accumulated_gradients"
OPTIONS, PARTITION, USER_DICT = "trainer_options", "partition_info", "user_dict"
FULL_PRECISION, ORIGINAL_DIMENSION = "full_precision", "original_dim"
SHARED, SHARDED = "shared_optimizer_state", ("Moment_1", "Moment_2")

_TORCH_TYPES: dict[int, torch.dtype] = {
    onnx.TensorProto.FLOAT: torch.float32,
    onnx.TensorProto.UINT8: torch.uint8,
    onnx.TensorProto.INT8: torch.int8,
    onnx.TensorProto.UINT16: torch.uint16,
    onnx.TensorProto.INT16: torch.int16,
    onnx.TensorProto.INT32: torch.int32,
    onnx.TensorProto.INT64: torch.int64,
    onnx.TensorProto.BOOL: torch.bool,
    onnx.TensorProto.FLOAT16: torch.float16,
    onnx.TensorProto.DOUBLE: torch.float64,
    onnx.TensorProto.UINT32: torch.uint32,
    onnx.TensorProto.UINT64: torch.uint64,
    onnx.TensorProto.COMPLEX64: torch.complex64,
    onnx.TensorProto.COMPLEX128: torch.complex128,
    onnx.TensorProto.BFLOAT16: torch.bfloat16,
}


def dtype_onnx_to_torch(onnx_type: int | str) -> torch.dtype:
    """The type of torch for one of ONNX, by its number or name."""
    if isinstance(onnx_type, str):
        known = list(onnx.TensorProto.DataType.keys())
        require(onnx_type.upper() in known, "Invalid onnx_type string")
        onnx_type = onnx.TensorProto.DataType.Value(onnx_type.upper())
    if onnx_type not in _TORCH_TYPES:
        raise InvalidValueError(f"torch has no type for {onnx_type!r}, which is one of ONNX")
    return _TORCH_TYPES[onnx_type]


def dtype_torch_to_numpy(torch_dtype: torch.dtype) -> np.dtype[Any]:
    """The type of numpy for one of torch; its float16 for bfloat16, which numpy lacks."""
    if torch_dtype == torch.bfloat16:
        return np.dtype(np.float16)
    if torch_dtype not in _TORCH_TYPES.values():
        raise InvalidValueError(f"torch_dtype ({torch_dtype}) type is not supported by Numpy")
    return torch.empty(0, dtype=torch_dtype).numpy().dtype


def get_device_index(device: str | int | torch.device) -> int:
    """The number of a device: 1 of "cuda:1"."""
    return torch.device(device).index or 0


def get_device_index_from_input(input: Any) -> int:  # noqa: A002  (the original's name)
    """The number of the device of a tensor, or of the first of several."""
    return get_device_index((input[0] if isinstance(input, (list, tuple)) else input).device)


def static_vars(**variables: Any) -> Callable[[Function], Function]:
    """Give a function attributes."""

    def decorate(function: Function) -> Function:
        for name, value in variables.items():
            setattr(function, name, value)
        return function

    return decorate


def import_module_from_file(file_path: str, module_name: str | None = None) -> ModuleType:
    """Import a file as a module."""
    exists = isinstance(file_path, str) and os.path.exists(file_path)
    require(exists, "'file_path' must be a full path string with the python file to load")
    name = module_name or os.path.basename(file_path).partition(".")[0]
    spec = importlib.util.spec_from_file_location(name, file_path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def state_dict_model_key() -> str:
    return MODEL


def state_dict_optimizer_key() -> str:
    return OPTIMIZER


def state_dict_partition_info_key() -> str:
    return PARTITION


def state_dict_trainer_options_key() -> str:
    return OPTIONS


def state_dict_train_step_info_key() -> str:
    return STEP_INFO


def state_dict_full_precision_key() -> str:
    return FULL_PRECISION


def state_dict_original_dimension_key() -> str:
    return ORIGINAL_DIMENSION


def state_dict_sharded_optimizer_keys() -> set[str]:
    return set(SHARDED)


def state_dict_user_dict_key() -> str:
    return USER_DICT

"""Types of torch, by themselves or by the names that its scripts give them, and those of ONNX."""

from __future__ import annotations

from typing import Any

import torch

from onward.torch.orttrainer._utils import dtype_onnx_to_torch
from onward.torch.orttrainer.refusal import InvalidValueError

_OnnxType = torch.onnx.TensorProtoDataType
_NAMES: dict[str, torch.dtype] = {
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Short": torch.int16,
    "Bool": torch.bool,
    "ComplexFloat": torch.complex64,
    "ComplexDouble": torch.complex128,
    "BFloat16": torch.bfloat16,
}
_ONNX: dict[torch.dtype, str] = {
    torch.uint8: "UINT8",
    torch.int8: "INT8",
    torch.float64: "DOUBLE",
    torch.float32: "FLOAT",
    torch.float16: "FLOAT16",
    torch.int32: "INT32",
    torch.int64: "INT64",
    torch.int16: "INT16",
    torch.bool: "BOOL",
    torch.complex64: "COMPLEX64",
    torch.complex128: "COMPLEX128",
    torch.bfloat16: "BFLOAT16",
}


def pytorch_scalar_type_to_pytorch_dtype(scalar_type: str) -> torch.dtype:
    """The type with a name like ``Float`` or ``Long``."""
    if scalar_type not in _NAMES:
        raise InvalidValueError(f"Unsupported dtype {scalar_type!r}; names of types are {', '.join(_NAMES)}")
    return _NAMES[scalar_type]


def pytorch_type_to_onnx_dtype(dtype_or_scalar_type: str | torch.dtype) -> _OnnxType:
    """The type of ONNX for one of torch, which may be given by its name."""
    dtype = dtype_or_scalar_type
    if isinstance(dtype, str):
        dtype = pytorch_scalar_type_to_pytorch_dtype(dtype)
    if dtype not in _ONNX:
        raise InvalidValueError(f"Unsupported dtype {dtype}; ONNX has {', '.join(map(str, _ONNX))}")
    found: _OnnxType = getattr(_OnnxType, _ONNX[dtype])
    return found


def onnx_dtype_to_pytorch_dtype(dtype: Any) -> torch.dtype:
    """The type of torch for one of ONNX, a number."""
    return dtype_onnx_to_torch(int(dtype))


# As older releases call them.
pytorch_dtype_to_onnx = pytorch_type_to_onnx_dtype
onnx_dtype_to_pytorch = onnx_dtype_to_pytorch_dtype

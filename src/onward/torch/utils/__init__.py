"""What `onnxruntime.training.utils` has: nested arguments as lists of tensors, types by their names, tables, ranges.

ORTModule does not use it; programs written for the original do.
"""

from __future__ import annotations

from onward.torch.utils.ptable import PTable
from onward.torch.utils.torch_io_helper import (
    ORTModelInputOutputSchemaType,
    ORTModelInputOutputType,
    PrimitiveType,
    extract_data_and_schema,
    unflatten_data_using_schema,
)
from onward.torch.utils.torch_profile_utils import (
    log_memory_usage,
    nvtx_function_decorator,
    torch_nvtx_range_pop,
    torch_nvtx_range_push,
)
from onward.torch.utils.torch_type_map import (
    onnx_dtype_to_pytorch,
    onnx_dtype_to_pytorch_dtype,
    pytorch_dtype_to_onnx,
    pytorch_scalar_type_to_pytorch_dtype,
    pytorch_type_to_onnx_dtype,
)

__all__ = [
    "ORTModelInputOutputSchemaType",
    "ORTModelInputOutputType",
    "PTable",
    "PrimitiveType",
    "extract_data_and_schema",
    "log_memory_usage",
    "nvtx_function_decorator",
    "onnx_dtype_to_pytorch",
    "onnx_dtype_to_pytorch_dtype",
    "pytorch_dtype_to_onnx",
    "pytorch_scalar_type_to_pytorch_dtype",
    "pytorch_type_to_onnx_dtype",
    "torch_nvtx_range_pop",
    "torch_nvtx_range_push",
    "unflatten_data_using_schema",
]

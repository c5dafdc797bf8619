"""Tensors of onnx_ir that share their data, and nothing else, with those of the caller."""

from __future__ import annotations

from copy import copy as shallow_copy

import onnx_ir as ir


def own_tensor(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """The same data under a name of its own: renaming a value renames its tensor, and the proto that it came from."""
    if isinstance(tensor, ir.serde.TensorProtoTensor):
        return ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=tensor.name)
    return shallow_copy(tensor)

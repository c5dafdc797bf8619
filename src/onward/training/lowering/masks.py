"""Gradients of activations."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.nodes import constant_of


def relu_mask(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """Where(mask, dy, 0) as dy times the mask: the gradient of Relu.

    onnxruntime's Where makes three passes by one thread. A masked infinity becomes a NaN, which is why this is for Relu
    only: there, a cotangent that is not finite means that training has diverged already. Other rules, and models, use
    Where to keep what is not finite away.
    """
    mask, x, other = node.inputs
    if mask is None or x is None or other is None or x.dtype != ir.DataType.FLOAT or not _is_sign_of_relu(mask):
        return None
    zero = constant_of(other)
    if zero is None or zero.size != 1 or zero.item() != 0:
        return None
    return [op.Mul(x, op.cast(mask, x.dtype))]


def _is_sign_of_relu(mask: ir.Value) -> bool:
    """Whether a mask is the result of a Relu, cast to booleans."""
    cast = mask.producer()
    source = None if cast is None or cast.op_type != "Cast" or cast.inputs[0] is None else cast.inputs[0].producer()
    return source is not None and source.op_type == "Relu"

"""Gradients of activations."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.nodes import constant_of, input_at


def mask(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """Where(mask, dy, 0) as dy times the mask: the gradient of Relu, and of Clip where it is an activation.

    onnxruntime's Where makes three passes by one thread. A masked infinity becomes a NaN, which is why this is for
    activations only: there, a cotangent that is not finite means that training has diverged already. Other rules, and
    models, use Where to keep what is not finite away.
    """
    chosen, x, other = node.inputs
    if chosen is None or x is None or other is None or x.dtype != ir.DataType.FLOAT:
        return None
    zero = constant_of(other)
    if zero is None or zero.size != 1 or zero.item() != 0:
        return None
    y = _rectified(chosen)
    if y is not None:
        # 1 where y is positive, in one pass; between 0 and 1 for numbers that are not normal, as y is all but 0 then.
        return [op.Mul(x, op.HardSigmoid(y, alpha=2.0**126, beta=0.0))]
    return [op.Mul(x, op.cast(chosen, x.dtype))] if _is_inside_of_activation(chosen) else None


def _rectified(mask: ir.Value) -> ir.Value | None:
    """The result of a Relu of which a mask is the cast to booleans."""
    cast = mask.producer()
    y = None if cast is None or cast.op_type != "Cast" else cast.inputs[0]
    relu = None if y is None else y.producer()
    return y if relu is not None and relu.op_type == "Relu" else None


# Operators that are linear in their data: their slopes are finite. Shape reads no data.
_LINEAR = frozenset(
    "Add AveragePool Conv ConvTranspose Flatten Gemm GlobalAveragePool MatMul MaxPool Pad ReduceMean Reshape".split()
) | {"Shape", "Transpose"}


def _is_inside_of_activation(mask: ir.Value) -> bool:
    """Whether a mask says where a Clip from 0 to a number, of which layers read the result, changed nothing."""
    equal = mask.producer()
    if equal is None or equal.op_type != "Equal":
        return False
    x, y = equal.inputs
    clip = None if y is None else y.producer()
    if x is None or y is None or clip is None or clip.op_type != "Clip" or clip.inputs[0] is not x:
        return False
    low = constant_of(input_at(clip, 1))
    readers = {user.op_type for user in y.consumers() if user is not equal}
    return low is not None and low.item() == 0 and readers <= _LINEAR

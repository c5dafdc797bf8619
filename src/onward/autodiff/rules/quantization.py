"""Quantisation: the integers in between have cotangents in floating point, and rounding counts as the identity.

QuantizeLinear is a straight-through estimator: with q = saturate(round(x / s) + z), dq/dx = 1 / s where nothing
saturates and 0 elsewhere, as in torch.fake_quantize; and dq/ds = -x / s^2 there. DequantizeLinear is (q - z) s, so for
the pair the derivative by the scale is round(x / s) - x / s inside and the saturated q - z outside: that of learned
step size quantisation (without that paper's factor, which is a choice of learning rate). Scales are settings, so they
get a gradient only when `wrt` names them. Zero points are integers: they have none.
"""

from __future__ import annotations

import onnx_ir as ir

from onward.autodiff.registry import vjp
from onward.autodiff.rules.placement import extent, joined
from onward.graph.builder import Builder
from onward.graph.nodes import attribute, input_at
from onward.graph.shapes import dims, is_floating, rank

Row = list[ir.Value | None]

_FLOAT = ir.DataType.FLOAT
_NARROW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_LARGEST = {
    ir.DataType.FLOAT8E4M3FN: 448.0,
    ir.DataType.FLOAT8E4M3FNUZ: 240.0,
    ir.DataType.FLOAT8E5M2: 57344.0,
    ir.DataType.FLOAT8E5M2FNUZ: 57344.0,
    ir.DataType.FLOAT4E2M1: 6.0,
}


@vjp("QuantizeLinear")
def quantize(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """The cotangent dy is that of an integer, and floating point."""
    x, scale = node.inputs[:2]
    if not is_floating(x):
        return [None]
    # 16 bits do not hold all integers to compare with.
    x32, s = _wide(op, x), _spread(op, node, _wide(op, scale), x)
    units = x32 / s
    low, high, whole = _range(node.outputs[0].dtype)
    rounded = op.Round(units) if whole else units
    zero = input_at(node, 2)
    if zero is not None:
        rounded = rounded + _spread(op, node, op.DequantizeLinear(zero, op.constant(1, _FLOAT)), x)
    inside = op.And(op.GreaterOrEqual(rounded, low), op.LessOrEqual(rounded, high))
    dx = op.Where(inside, op.cast(dy, x32.dtype) / s, 0)
    ds = op.Neg(_gathered(op, node, dx * units, scale, x))
    return [op.cast(dx, x.dtype), op.cast(ds, scale.dtype) if is_floating(scale) else None]


@vjp("DequantizeLinear")
def dequantize(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """y = (q - z) s: integers that were quantised get dy s, the scale the sum of dy (q - z)."""
    x, scale = node.inputs[:2]
    s = _spread(op, node, op.cast(scale, dy.dtype), x)
    if not is_floating(scale):
        return [dy * s]
    how = {name: attribute(node, name, None) for name in ("axis", "block_size")}
    steps = op.DequantizeLinear(x, op.ones_like(scale), *node.inputs[2:], **how)
    ds = _gathered(op, node, dy * op.cast(steps, dy.dtype), scale, x)
    return [dy * s, op.cast(ds, scale.dtype)]


def _wide(op: Builder, x: ir.Value) -> ir.Value:
    return x if is_floating(x) and x.dtype not in _NARROW else op.cast(x, _FLOAT)


def _range(dtype: ir.DataType | None) -> tuple[float, float, bool]:
    """The smallest and the largest number of a type, and whether its numbers are whole."""
    assert dtype is not None
    if dtype in _LARGEST:
        return -_LARGEST[dtype], _LARGEST[dtype], False
    bits = dtype.bitwidth
    return (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1, True) if dtype.is_signed() else (0.0, 2.0**bits - 1, True)


def _axis(node: ir.Node, ndim: int) -> int:
    """A vector has but one axis, which the default is not."""
    return attribute(node, "axis", 1) % ndim if ndim > 1 else 0


def _spread(op: Builder, node: ir.Node, setting: ir.Value, x: ir.Value) -> ir.Value:
    """A scale or zero point, so that it broadcasts to x: one for all, one for each place of an axis, or for a block."""
    scale = node.inputs[1]
    ndim, block = rank(x), attribute(node, "block_size", 0)
    if rank(scale) == 0 or dims(scale) == (1,):
        return setting
    axis = _axis(node, ndim)
    if not block:
        return op.Reshape(setting, [-1 if other == axis else 1 for other in range(ndim)])
    sizes = [extent(op, scale, other) for other in range(ndim)]
    repeated = op.Expand(op.Unsqueeze(setting, [axis + 1]), [1] * (axis + 1) + [block] + [1] * (ndim - axis - 1))
    joint = op.Reshape(repeated, joined(op, [*sizes[:axis], sizes[axis] * block, *sizes[axis + 1 :]]))
    return op.Slice(joint, [0], op.dim(x, axis), [axis])  # the last block may be shorter


def _gathered(op: Builder, node: ir.Node, dy: ir.Value, scale: ir.Value, x: ir.Value) -> ir.Value:
    """The sum of dy, of the shape of x, over what shares a scale."""
    ndim, block = rank(x), attribute(node, "block_size", 0)
    if rank(scale) == 0 or dims(scale) == (1,):
        return op.reshape_like(op.ReduceSum(dy, keepdims=0), scale)
    axis = _axis(node, ndim)
    if not block:
        others = [other for other in range(ndim) if other != axis]
        known = dims(x)
        return op.sum_to(
            op.ReduceSum(dy, others, keepdims=0) if others else dy, scale, known and known[axis : axis + 1]
        )
    sizes = [extent(op, scale, other) for other in range(ndim)]
    missing = sizes[axis] * block - extent(op, x, axis)
    padded = op.Pad(dy, joined(op, [*[0] * (ndim + axis), missing, *[0] * (ndim - axis - 1)]))
    blocks = op.Reshape(padded, joined(op, [*sizes[: axis + 1], block, *sizes[axis + 1 :]]))
    return op.ReduceSum(blocks, [axis + 1], keepdims=0)

"""Normalisations: a group of elements is centred and divided by its deviation, then scaled.

With xhat = (x - mean) inv, where inv = 1 / sqrt(var + epsilon) of the n elements of a group, and dxhat = scale dy:

    dx = inv (dxhat - mean(dxhat) - xhat mean(dxhat xhat))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import onnx_ir as ir

from onward.autodiff.registry import vjp
from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.graph.nodes import attribute, describe, input_at
from onward.graph.shapes import dims, rank

Row = list[ir.Value | None]

_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def _wide(op: Builder, x: ir.Value) -> ir.Value:
    """x in the precision in which the standard computes statistics: float for half-precision types."""
    return op.cast(x, ir.DataType.FLOAT) if x.dtype in _HALVES else x


def _count(op: Builder, x: ir.Value, axes: Sequence[int]) -> ir.Value | float:
    """The number of elements of a group."""
    known = dims(x) or ()
    sizes = [size for axis in axes if isinstance(size := known[axis], int)]
    return float(math.prod(sizes)) if len(sizes) == len(axes) else op.cast(op.size(x, axes), x.dtype)


def _per_channel(op: Builder, vector: ir.Value, like: ir.Value) -> ir.Value:
    """`[C]` so that it broadcasts against `[N, C, d1, ...]`."""
    vector = op.cast(vector, like.dtype)
    return vector if rank(like) == 2 else op.Unsqueeze(vector, list(range(1, rank(like) - 1)))


class _Groups(NamedTuple):
    """Groups of elements that were normalised together; statistics have size 1 along the axes of a group."""

    x: ir.Value
    axes: list[int]
    center: ir.Value  # x - mean
    inv: ir.Value

    @classmethod
    def of(cls, op: Builder, x: ir.Value, axes: list[int], epsilon: float) -> _Groups:
        center = x - op.ReduceMean(x, axes, keepdims=1)
        variance = op.ReduceMean(center * center, axes, keepdims=1)
        return cls(x, axes, center, op.Reciprocal(op.Sqrt(variance + epsilon)))


@vjp("BatchNormalization")
def batch_normalization(op: Builder, node: ir.Node, dy: ir.Value | None, *dstatistics: ir.Value | None) -> Row:
    if not attribute(node, "spatial", 1):
        raise OnwardError(f"{describe(node)} has spatial=0, of which no gradient is known; the standard dropped it")
    # Up to opset 13 a node is in training mode when it has the outputs of that mode.
    statistics = [output for output in node.outputs[1:] if output.name]
    if attribute(node, "training_mode", 1 if statistics and op.opset < 14 else 0):
        return _batch_training(op, node, dy, *dstatistics[:2])
    return _batch_inference(op, node, dy)


def _batch_inference(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """y = (x - mean) inv scale + bias with mean and variance given."""
    x, scale, bias, mean, var = node.inputs
    x_wide, dy_wide = _wide(op, x), _wide(op, dy)
    inv = op.Reciprocal(op.Sqrt(op.cast(var, x_wide.dtype) + attribute(node, "epsilon", 1e-5)))
    slope = op.cast(scale, x_wide.dtype) * inv
    axes = [0, *range(2, rank(x))]
    dbias = op.ReduceSum(dy_wide, axes, keepdims=0)
    dscale = op.ReduceSum(dy_wide * (x_wide - _per_channel(op, mean, x_wide)), axes, keepdims=0) * inv
    cotangents = [
        dy_wide * _per_channel(op, slope, x_wide),
        dscale,
        dbias,
        -(dbias * slope),
        dscale * slope * inv * -0.5,
    ]
    return [op.cast(dx, value.dtype) for dx, value in zip(cotangents, node.inputs, strict=True)]


def _batch_training(
    op: Builder,
    node: ir.Node,
    dy: ir.Value | None,
    drunning_mean: ir.Value | None = None,
    drunning_var: ir.Value | None = None,
) -> Row:
    """Mean and variance are those of the batch; running = momentum input + (1 - momentum) batch."""
    x, scale, bias, mean, var = node.inputs
    momentum = attribute(node, "momentum", 0.9)
    dx = dscale = dbias = None
    groups = _Groups.of(op, _wide(op, x), [0, *range(2, rank(x))], attribute(node, "epsilon", 1e-5))
    if dy is not None:
        slope = _per_channel(op, scale, groups.x)
        dx, dscale, dbias = _uniformly_scaled(op, _wide(op, dy), groups, slope)
        dscale, dbias = op.Reshape(dscale, [-1]), op.Reshape(dbias, [-1])
    n = _count(op, groups.x, groups.axes)
    terms = [dx]
    if drunning_mean is not None:
        share = _per_channel(op, drunning_mean, groups.x) * (1 - momentum) / n
        terms.append(op.expand_like(share, x))
    if drunning_var is not None:
        terms.append(groups.center * (_per_channel(op, drunning_var, groups.x) * (2 * (1 - momentum)) / n))
    total = op.Sum(*(term for term in terms if term is not None)) if len(terms) > 1 else dx
    dmean = None if drunning_mean is None else drunning_mean * momentum
    dvar = None if drunning_var is None else drunning_var * momentum
    cotangents = [total, dscale, dbias, dmean, dvar]
    pairs = zip(cotangents, node.inputs, strict=True)
    return [None if dvalue is None else op.cast(dvalue, value.dtype) for dvalue, value in pairs]


def _uniformly_scaled(
    op: Builder, dy: ir.Value, groups: _Groups, scale: ir.Value
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """dx, and the sums of dy xhat and dy over each group, where all elements of a group have the same scale."""
    sum_dy = op.ReduceSum(dy, groups.axes, keepdims=1)
    sum_dy_xhat = op.ReduceSum(dy * groups.center, groups.axes, keepdims=1) * groups.inv
    n = _count(op, groups.x, groups.axes)
    # Everything that is constant in a group is multiplied first: there are few groups and many elements.
    slope = scale * groups.inv
    dx = dy * slope - groups.center * (slope * groups.inv * sum_dy_xhat / n) - slope * sum_dy / n
    return dx, sum_dy_xhat, sum_dy


@vjp("InstanceNormalization")
def instance_normalization(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """Each channel of each instance is a group."""
    x, scale, _ = node.inputs
    axes = list(range(2, rank(x)))
    groups = _Groups.of(op, _wide(op, x), axes, attribute(node, "epsilon", 1e-5))
    dx, dscale, dbias = _uniformly_scaled(op, _wide(op, dy), groups, _per_channel(op, scale, groups.x))
    sums = [op.ReduceSum(total, [0, *axes], keepdims=0) for total in (dscale, dbias)]
    return [op.cast(value, x.dtype) for value in (dx, *sums)]


@vjp("GroupNormalization")
def group_normalization(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """Channels are normalised in groups; the scale is per group up to opset 20, then per channel."""
    x, scale, _ = node.inputs
    number = attribute(node, "num_groups", 0)
    # [N, groups, channels of a group, everything else]
    channels = (dims(x) or ())[1]
    per_group: int | ir.Value = channels // number if isinstance(channels, int) else -1
    wide, dy_wide = _wide(op, x), _wide(op, dy)
    split = op.Concat(op.dim(x, 0), [number], op.Div(op.dim(x, 1), number), [-1], axis=0) if per_group == -1 else None
    shape = [0, number, per_group, -1] if split is None else split
    grouped, dgrouped = op.Reshape(wide, shape), op.Reshape(dy_wide, shape)
    groups = _Groups.of(op, grouped, [2, 3], attribute(node, "epsilon", 1e-5))
    if op.opset < 21:
        slope = op.Reshape(op.cast(scale, wide.dtype), [1, -1, 1, 1])
        dx, dscale, dbias = _uniformly_scaled(op, dgrouped, groups, slope)
        sums = [op.ReduceSum(total, [0, 2, 3], keepdims=0) for total in (dscale, dbias)]
    else:
        slope = op.Reshape(op.cast(scale, wide.dtype), [1, number, -1, 1])
        xhat = groups.center * groups.inv
        dx = _normalized(op, dgrouped * slope, xhat, groups.inv, groups.axes)
        totals = [op.ReduceSum(total, [0, 3], keepdims=0) for total in (dgrouped * xhat, dgrouped)]
        sums = [op.Reshape(total, [-1]) for total in totals]
    return [op.cast(value, x.dtype) for value in (op.reshape_like(dx, x), *sums)]


def _normalized(op: Builder, dxhat: ir.Value, xhat: ir.Value, inv: ir.Value, axes: list[int]) -> ir.Value:
    """dx of the formula at the head of this module."""
    return (dxhat - op.ReduceMean(dxhat, axes, keepdims=1) - xhat * op.ReduceMean(dxhat * xhat, axes, keepdims=1)) * inv


@vjp("LayerNormalization")
def layer_normalization(
    op: Builder, node: ir.Node, dy: ir.Value | None, dmean: ir.Value | None = None, dinv: ir.Value | None = None
) -> Row:
    """The axes from `axis` on are one group; mean and inv are outputs of the forward node, in float."""
    x, scale, bias = node.inputs[0], node.inputs[1], input_at(node, 2)
    axes = _trailing_axes(node)
    wide = _wide(op, x)
    inv = op.cast(op.forward_output(node, 2), wide.dtype)
    xhat = (wide - op.cast(op.forward_output(node, 1), wide.dtype)) * inv
    terms: Row = []
    dscale = dbias = None
    if dy is not None:
        dy_wide = _wide(op, dy)
        terms.append(_normalized(op, dy_wide * op.cast(scale, wide.dtype), xhat, inv, axes))
        dscale = op.cast(op.sum_to(dy_wide * xhat, scale, dims(x)), x.dtype)
        dbias = None if bias is None else op.cast(op.sum_to(dy_wide, bias, dims(x)), x.dtype)
    # The two other outputs have cotangents in second derivatives.
    if dmean is not None:
        share = op.cast(dmean, wide.dtype) / _count(op, wide, axes)
        terms.append(op.expand_like(share, x))
    if dinv is not None:
        terms.append(xhat * (op.cast(dinv, wide.dtype) * inv * inv / -_count(op, wide, axes)))
    dx = terms[0] if len(terms) == 1 else op.Sum(*terms)
    return [op.cast(dx, x.dtype), dscale, dbias][: len(node.inputs)]


@vjp("RMSNormalization")
def rms_normalization(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """xhat = x inv with inv = 1 / sqrt(mean(x x) + epsilon): the mean is not taken away."""
    x, scale = node.inputs
    axes = _trailing_axes(node)
    wide, dy_wide = _wide(op, x), op.cast(_wide(op, dy), _wide(op, x).dtype)
    inv = op.Reciprocal(op.Sqrt(op.ReduceMean(wide * wide, axes, keepdims=1) + attribute(node, "epsilon", 1e-5)))
    xhat = wide * inv
    dxhat = dy_wide * op.cast(scale, wide.dtype)
    dx = (dxhat - xhat * op.ReduceMean(dxhat * xhat, axes, keepdims=1)) * inv
    dscale = op.sum_to(dy_wide * xhat, scale, dims(x))
    return [op.cast(dx, x.dtype), op.cast(dscale, scale.dtype)]


def _trailing_axes(node: ir.Node) -> list[int]:
    axis = attribute(node, "axis", -1)
    return list(range(axis, 0)) if axis < 0 else list(range(axis, rank(node.inputs[0])))


@vjp("LpNormalization")
def lp_normalization(op: Builder, node: ir.Node, dy: ir.Value) -> ir.Value:
    """y = x / |x|, so dx = (dy - s sum(dy y)) / |x|, where s is the slope of the norm; 0 where all elements are 0."""
    x, y = node.inputs[0], node.outputs[0]
    axes = [attribute(node, "axis", -1)]
    if attribute(node, "p", 2) == 1:
        norm, slope = op.ReduceL1(x, axes, keepdims=1), op.Sign(x)
    else:
        norm, slope = op.ReduceL2(x, axes, keepdims=1), y
    zero = op.Equal(norm, 0)
    dx = (dy - slope * op.ReduceSum(dy * y, axes, keepdims=1)) / op.Where(zero, 1, norm)
    return op.Where(zero, 0, dx)

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


def _count(op: Builder, x: ir.Value, axes: Sequence[int], dtype: ir.DataType) -> ir.Value | float:
    """The number of elements of a group."""
    known = dims(x) or ()
    sizes = [size for axis in axes if isinstance(size := known[axis], int)]
    return float(math.prod(sizes)) if len(sizes) == len(axes) else op.cast(op.size(x, axes), dtype)


def _per_channel(op: Builder, vector: ir.Value, x: ir.Value) -> ir.Value:
    """`[C]` so that it broadcasts against x of `[N, C, d1, ...]`."""
    return vector if rank(x) == 2 else op.Unsqueeze(vector, list(range(1, rank(x) - 1)))


class Groups(NamedTuple):
    """Elements that were normalised together; statistics have size 1 along the axes of a group."""

    axes: list[int]
    center: ir.Value  # x - mean
    inv: ir.Value


def _groups(op: Builder, node: ir.Node, x: ir.Value, axes: list[int]) -> Groups:
    center = x - op.ReduceMean(x, axes, keepdims=1)
    variance = op.ReduceMean(center * center, axes, keepdims=1)
    return Groups(axes, center, op.Reciprocal(op.Sqrt(variance + attribute(node, "epsilon", 1e-5))))


@vjp("BatchNormalization")
def batch_normalization(op: Builder, node: ir.Node, dy: ir.Value | None, *dstatistics: ir.Value | None) -> Row:
    if not attribute(node, "spatial", 1):
        raise OnwardError(f"{describe(node)} has spatial=0, of which no gradient is known; the standard dropped it")
    # Up to opset 13 a node is in training mode when it has the outputs of that mode.
    statistics = [output for output in node.outputs[1:] if output.name]
    if attribute(node, "training_mode", 1 if statistics and op.opset < 14 else 0):
        x = node.inputs[0]
        return batch_training(op, node, _groups(op, node, _wide(op, x), _batch_axes(x)), dy, *dstatistics[:2])
    return _batch_inference(op, node, dy)


def _batch_inference(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """y = (x - mean) inv scale + bias with mean and variance given."""
    x = node.inputs[0]
    wide, dy = _wide(op, x), _wide(op, dy)
    scale, _, mean, var = (op.cast(vector, wide.dtype) for vector in node.inputs[1:])
    inv = op.Reciprocal(op.Sqrt(var + attribute(node, "epsilon", 1e-5)))
    slope = scale * inv
    axes = _batch_axes(x)
    dbias = op.ReduceSum(dy, axes, keepdims=0)
    dscale = op.ReduceSum(dy * (wide - _per_channel(op, mean, x)), axes, keepdims=0) * inv
    dmean, dvar = -(dbias * slope), dscale * slope * inv * -0.5
    return _in_types_of(op, node, dy * _per_channel(op, slope, x), dscale, dbias, dmean, dvar)


def batch_training(
    op: Builder,
    node: ir.Node,
    groups: Groups,
    dy: ir.Value | None,
    drunning_mean: ir.Value | None = None,
    drunning_var: ir.Value | None = None,
) -> Row:
    """Mean and variance are those of the batch; running = momentum given + (1 - momentum) batch."""
    x, scale = node.inputs[:2]
    dtype = groups.center.dtype
    momentum = attribute(node, "momentum", 0.9)
    number = _count(op, x, groups.axes, dtype)
    terms: list[ir.Value] = []
    dscale = dbias = dmean = dvar = None
    if dy is not None:
        slope = _per_channel(op, op.cast(scale, dtype), x)
        dx, dscale, dbias = _uniformly_scaled(op, _wide(op, dy), groups, slope, number)
        terms.append(dx)
        dscale, dbias = op.Reshape(dscale, [-1]), op.Reshape(dbias, [-1])
    if drunning_mean is not None:
        share = op.cast(drunning_mean, dtype) * (1 - momentum) / number
        terms.append(op.expand_like(_per_channel(op, share, x), x))
        dmean = drunning_mean * momentum
    if drunning_var is not None:
        share = op.cast(drunning_var, dtype) * (2 * (1 - momentum)) / number
        terms.append(groups.center * _per_channel(op, share, x))
        dvar = drunning_var * momentum
    return _in_types_of(op, node, _sum(op, terms), dscale, dbias, dmean, dvar)


def batch_groups(op: Builder, node: ir.Node, mean: ir.Value, variance: ir.Value) -> Groups:
    """The channels of a batch, whose mean and variance are given as `[C]`."""
    x = node.inputs[0]
    wide = _wide(op, x)
    mean, variance = (_per_channel(op, op.cast(vector, wide.dtype), x) for vector in (mean, variance))
    inv = op.Reciprocal(op.Sqrt(variance + attribute(node, "epsilon", 1e-5)))
    return Groups(_batch_axes(x), wide - mean, inv)


def _batch_axes(x: ir.Value) -> list[int]:
    """All axes but that of the channels."""
    return [0, *range(2, rank(x))]


def _in_types_of(op: Builder, node: ir.Node, *cotangents: ir.Value | None) -> Row:
    """Cotangents in the types of the inputs, which may differ from each other."""
    pairs = zip(node.inputs, cotangents, strict=False)
    return [None if dx is None else op.cast(dx, x.dtype) for x, dx in pairs]


def _sum(op: Builder, terms: list[ir.Value]) -> ir.Value:
    return terms[0] if len(terms) == 1 else op.Sum(*terms)


def _uniformly_scaled(
    op: Builder, dy: ir.Value, groups: Groups, scale: ir.Value, number: ir.Value | float
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """dx, and the sums of dy xhat and dy over each group, where all `number` elements of a group have one scale."""
    sum_dy = op.ReduceSum(dy, groups.axes, keepdims=1)
    sum_dy_xhat = op.ReduceSum(dy * groups.center, groups.axes, keepdims=1) * groups.inv
    # Everything that is constant in a group is multiplied first: there are few groups and many elements.
    centered = dy - (groups.center * (groups.inv * sum_dy_xhat / number) + sum_dy / number)
    return centered * (scale * groups.inv), sum_dy_xhat, sum_dy


@vjp("InstanceNormalization")
def instance_normalization(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """Each channel of each instance is a group."""
    x, scale, _ = node.inputs
    axes = list(range(2, rank(x)))
    wide = _wide(op, x)
    groups, number = _groups(op, node, wide, axes), _count(op, x, axes, wide.dtype)
    slope = _per_channel(op, op.cast(scale, wide.dtype), x)
    dx, dscale, dbias = _uniformly_scaled(op, _wide(op, dy), groups, slope, number)
    sums = [op.ReduceSum(total, [0, *axes], keepdims=0) for total in (dscale, dbias)]
    return _in_types_of(op, node, dx, *sums)


@vjp("GroupNormalization")
def group_normalization(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """Channels are normalised in groups and scaled one by one.

    Before opset 21 the scale was that of a group, but that form is deprecated and onnx's checker refuses it.
    """
    x, scale, _ = node.inputs
    count = attribute(node, "num_groups", 1)
    channels = (dims(x) or (None, None))[1]
    # [N, groups, channels of a group, everything else]
    shape = (
        op.constant([0, count, channels // count, -1])
        if isinstance(channels, int)
        else op.Concat([0, count], op.Div(op.dim(x, 1), count), [-1], axis=0)
    )
    wide, dy = op.Reshape(_wide(op, x), shape), op.Reshape(_wide(op, dy), shape)
    slope = op.Reshape(op.cast(scale, wide.dtype), [count, -1, 1])
    groups = _groups(op, node, wide, [2, 3])
    number = _count(op, x, range(1, rank(x)), wide.dtype) / count
    # Sums over each channel give the cotangents of scale and bias, and their weighted sums the means over a group.
    sum_dy = op.ReduceSum(dy, [3], keepdims=1)
    sum_dy_xhat = op.ReduceSum(dy * groups.center, [3], keepdims=1) * groups.inv
    mean, mean_xhat = (op.ReduceSum(sums * slope, [2], keepdims=1) / number for sums in (sum_dy, sum_dy_xhat))
    constant = groups.inv * mean
    dx = dy * (slope * groups.inv) - (groups.center * (groups.inv * groups.inv * mean_xhat) + constant)
    dscale, dbias = (op.Reshape(op.ReduceSum(sums, [0]), [-1]) for sums in (sum_dy_xhat, sum_dy))
    return _in_types_of(op, node, op.reshape_like(dx, x), dscale, dbias)


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
    terms: list[ir.Value] = []
    dscale = dbias = None
    if dy is not None:
        dy = _wide(op, dy)
        terms.append(_normalized(op, dy * op.cast(scale, wide.dtype), xhat, inv, axes))
        dscale = op.sum_to(dy * xhat, scale, dims(x))
        dbias = None if bias is None else op.sum_to(dy, bias, dims(x))
    # The two other outputs have cotangents in second derivatives.
    if dmean is not None:
        share = op.cast(dmean, wide.dtype) / _count(op, x, axes, wide.dtype)
        terms.append(op.expand_like(share, x))
    if dinv is not None:
        share = op.cast(dinv, wide.dtype) * inv * inv / _count(op, x, axes, wide.dtype)
        terms.append(-(xhat * share))
    return _in_types_of(op, node, _sum(op, terms), dscale, dbias)


@vjp("RMSNormalization")
def rms_normalization(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """xhat = x inv with inv = 1 / sqrt(mean(x x) + epsilon): the mean is not taken away."""
    x, scale = node.inputs
    axes = _trailing_axes(node)
    wide = _wide(op, x)
    dy = op.cast(dy, wide.dtype)
    inv = op.Reciprocal(op.Sqrt(op.ReduceMean(wide * wide, axes, keepdims=1) + attribute(node, "epsilon", 1e-5)))
    xhat = wide * inv
    dxhat = dy * op.cast(scale, wide.dtype)
    dx = (dxhat - xhat * op.ReduceMean(dxhat * xhat, axes, keepdims=1)) * inv
    return _in_types_of(op, node, dx, op.sum_to(dy * xhat, scale, dims(x)))


def _trailing_axes(node: ir.Node) -> list[int]:
    axis = attribute(node, "axis", -1)
    return list(range(axis, 0)) if axis < 0 else list(range(axis, rank(node.inputs[0])))


@vjp("MeanVarianceNormalization")
def mean_variance_normalization(op: Builder, node: ir.Node, dy: ir.Value) -> ir.Value:
    """y = (x - mean) / (deviation + 1e-9)."""
    x, y = node.inputs[0], node.outputs[0]
    axes = list(attribute(node, "axes", (0, 2, 3)))
    wide = _wide(op, x)
    center = wide - op.ReduceMean(wide, axes, keepdims=1)
    inv = op.Reciprocal(op.Sqrt(op.ReduceMean(center * center, axes, keepdims=1)) + 1e-9)
    return op.cast(_normalized(op, _wide(op, dy), _wide(op, y), inv, axes), x.dtype)


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

"""Operators that the standard has adopted, or has in another form."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.contrib.domain import rewrites
from onward.graph.contrib.rotary import numbers
from onward.graph.nodes import attribute, constant_of, input_at
from onward.graph.rewriting.registry import RefusedError
from onward.graph.shapes import rank


@rewrites("Trilu", reads="upper")
def trilu(op: Builder, node: ir.Node) -> ir.Value:
    return op.Trilu(node.inputs[0], input_at(node, 1), upper=attribute(node, "upper", 1))


@rewrites("GridSample", reads="align_corners mode padding_mode")
def grid_sample(op: Builder, node: ir.Node) -> ir.Value:
    mode = attribute(node, "mode", "bilinear")
    if op.opset >= 20:
        mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return op.GridSample(
        *node.inputs,
        mode=mode,
        padding_mode=attribute(node, "padding_mode", "zeros"),
        align_corners=attribute(node, "align_corners", 0),
    )


@rewrites("GatherND")
def gather_nd(op: Builder, node: ir.Node) -> ir.Value:
    data, indices = node.inputs
    assert indices is not None
    return op.GatherND(data, op.cast(indices, ir.DataType.INT64))


@rewrites("Pad", reads="mode")
def pad(op: Builder, node: ir.Node) -> ir.Value:
    """`pads` may be [1, 2 rank], and the value a vector of one element."""
    x, pads, value = (input_at(node, index) for index in range(3))
    value = None if value is None else _scalar(op, value)
    return op.Pad(x, op.Reshape(pads, [-1]), value, mode=attribute(node, "mode", "constant"))


def _scalar(op: Builder, x: ir.Value | None) -> ir.Value:
    assert x is not None
    return op.Squeeze(x, [0]) if rank(x) else x


@rewrites("ExpandDims", needs="an axis that is not a constant")
def expand_dims(op: Builder, node: ir.Node) -> ir.Value:
    axis = constant_of(node.inputs[1])
    if axis is None:
        raise RefusedError("its axis is not a constant")
    return op.Unsqueeze(node.inputs[0], [int(axis)])


@rewrites("Range")
def range_(op: Builder, node: ir.Node) -> ir.Value:
    """Its inputs may be vectors of one element, and the step may be missing."""
    start, limit, step = (input_at(node, index) for index in range(3))
    return op.Range(_scalar(op, start), _scalar(op, limit), 1 if step is None else _scalar(op, step))


@rewrites("Unique")
def unique(op: Builder, node: ir.Node) -> list[ir.Value]:
    """In the order of first occurrence."""
    y, _, inverse, counts = op.Unique(node.inputs[0], sorted=0, outputs=4)
    return [y, inverse, counts]


@rewrites("ComplexMul", "ComplexMulConj")
def complex_mul(op: Builder, node: ir.Node) -> ir.Value:
    """(a + ib)(c + id), or (a + ib)(c - id), with real and imaginary parts along the last axis."""
    (a, b), (c, d) = (op.Split(x, [1, 1], axis=-1, outputs=2) for x in node.inputs)
    if node.op_type == "ComplexMulConj":
        return op.Concat(a * c + b * d, b * c - a * d, axis=-1)
    return op.Concat(a * c - b * d, a * d + b * c, axis=-1)


@rewrites("SparseSoftmaxCrossEntropy", reads="reduction")
def sparse_softmax_cross_entropy(op: Builder, node: ir.Node) -> list[ir.Value]:
    """The cross entropy of scores with the classes last; each label may have a weight, which a mean is divided by."""
    scores, labels, weights = (input_at(node, index) for index in range(3))
    assert scores is not None
    assert labels is not None
    reduction = attribute(node, "reduction", "mean")
    loss, log_prob = op.SoftmaxCrossEntropyLoss(
        op.Reshape(scores, op.Concat([-1], op.dim(scores, -1), axis=0)),
        op.Reshape(labels, [-1]),
        reduction=reduction if weights is None else "none",
        outputs=2,
    )
    if weights is not None:
        loss = loss * op.Reshape(weights, [-1])
    if reduction == "none":
        loss = op.reshape_like(loss, labels)
    elif weights is not None:
        total = op.ReduceSum(loss, keepdims=0)
        loss = total / op.ReduceSum(weights, keepdims=0) if reduction == "mean" else total
    return [loss, op.reshape_like(log_prob, scores)]


@rewrites("Inverse")
def inverse(op: Builder, node: ir.Node) -> ir.Value:
    """The transposed cofactors of x over its determinant.

    The standard has no inverse. Cofactor [i, j] is the determinant of x with row i replaced by the unit row j: that is
    n^2 determinants, affordable for the small matrices that models invert.
    """
    x = node.inputs[0]
    assert x is not None
    assert x.dtype is not None
    n, places = rank(x), numbers(op, op.dim(x, -1))
    unit = op.cast(op.Equal(op.Unsqueeze(places, [1]), places), x.dtype)
    kept = op.Unsqueeze(1 - unit, [1, 3])  # [i, 1, row, 1]
    row = op.Unsqueeze(unit, [1, 3]) * op.Unsqueeze(unit, [0, 2])  # [i, j, row, column]
    cofactors = op.Det(op.Unsqueeze(x, [n - 2, n - 1]) * kept + row)
    axes = [*range(n - 2), n - 1, n - 2]
    return op.Transpose(cofactors, perm=axes) / op.Unsqueeze(op.Det(x), [n - 2, n - 1])


@rewrites("CropAndResize", reads="mode extrapolation_value", only={"mode": "bilinear"})
def crop_and_resize(op: Builder, node: ir.Node) -> ir.Value:
    """Sample each region [y1, x1, y2, x2] of its image, all coordinates in [0, 1], on a grid with aligned corners.

    Points outside of the image have the extrapolation value.
    """
    x, regions, images, size = node.inputs
    assert x is not None
    assert regions is not None
    assert x.dtype is not None
    rank(x)
    rows, columns = (_positions(op, regions, size, axis) for axis in (0, 1))
    rows, columns = op.Unsqueeze(rows, [2]), op.Unsqueeze(columns, [1])
    like = op.Add(rows, columns) * 0
    grid = op.Concat(*(op.Unsqueeze(point * 2 - 1 + like, [3]) for point in (columns, rows)), axis=3)
    sampled = op.GridSample(op.Gather(x, images, axis=0), grid, align_corners=1)
    low, high = op.Min(rows + like, columns + like), op.Max(rows + like, columns + like)
    inside = op.And(op.Not(op.Less(low, 0)), op.Not(op.Greater(high, 1)))
    return op.Where(op.Unsqueeze(inside, [1]), sampled, attribute(node, "extrapolation_value", 0.0))


def _positions(op: Builder, regions: ir.Value, size: ir.Value | None, axis: int) -> ir.Value:
    """start + i (end - start) / (size - 1) for i below size, or the middle where size is 1, as [regions, size]."""
    assert size is not None
    assert regions.dtype is not None
    start, end = (op.Slice(regions, [column], [column + 1], [1]) for column in (axis, axis + 2))
    count = op.Gather(op.cast(size, ir.DataType.INT64), axis, axis=0)
    number = op.cast(op.Range(op.constant(0), count, op.constant(1)), regions.dtype)
    single = op.Equal(count, 1)
    last = op.cast(op.Sub(count, 1), regions.dtype)
    share = op.Where(single, 0.5, number / op.Where(single, 1.0, last))
    return start + (end - start) * share

"""Nodes that WebGPU refuses, in operators that it has.

Values are preserved up to rounding. Not chosen for speed: the processor runs the nodes that were there before faster.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.graph.nodes import attribute
from onward.graph.replacement import Replacement, replace_node
from onward.graph.shapes import dims
from onward.training.modes import trains_batch_statistics


def lower_for_webgpu(op: Builder) -> None:
    """Replace nodes of the graph of `op`, in place."""
    for node in list(op.graph):
        lowering = _LOWERINGS.get(node.op_type) if node.domain == "" else None
        if lowering is not None:
            replace_node(op, node, lowering)
    for node in op.graph.all_nodes():
        if trains_batch_statistics(node, op.opset):
            raise OnwardError(
                f"WebGPU has no BatchNormalization in training, and that of node {node.name!r} cannot be written in "
                "other operators, because it is part of a branch or a loop, or the rank of its input is unknown"
            )


def _product_of_matrices(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """A product with a vector as one with a matrix of one row or column."""
    a, b = node.inputs
    assert a is not None
    assert b is not None
    ranks = [None if known is None else len(known) for known in (dims(a), dims(b))]
    if 1 not in ranks or None in ranks:
        return None
    row = op.Unsqueeze(a, [0]) if ranks[0] == 1 else a
    column = op.Unsqueeze(b, [1]) if ranks[1] == 1 else b
    product = op.MatMul(row, column)
    added = [axis for axis, size in ((-2, ranks[0]), (-1, ranks[1])) if size == 1]
    return [op.Squeeze(product, added)]


def _batch_normalization(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """(x - mean) scale / sqrt(variance + epsilon) + shift over all axes but the second, in training.

    The new statistics are momentum * given + (1 - momentum) * those of the batch.
    """
    x, scale, shift, *given = node.inputs
    assert x is not None
    sizes = dims(x)
    if not trains_batch_statistics(node, op.opset) or sizes is None:
        return None
    assert x.dtype is not None
    wide = ir.DataType.FLOAT if x.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) else x.dtype
    data, weight, bias = (op.cast(value, wide) for value in (x, scale, shift) if value is not None)
    axes = [axis for axis in range(len(sizes)) if axis != 1]
    along = [-1, *[1] * (len(sizes) - 2)]  # a vector of channels broadcasts along the second axis
    mean = op.ReduceMean(data, axes, keepdims=1)
    centred = data - mean
    variance = op.ReduceMean(centred * centred, axes, keepdims=1)
    factor = op.Reshape(weight, along) / op.Sqrt(variance + attribute(node, "epsilon", 1e-5))
    y = op.cast(centred * factor + op.Reshape(bias, along), x.dtype)
    batch = [op.Reshape(statistic, [-1]) for statistic in (mean, variance)]
    return [y, *_running(op, batch, given, attribute(node, "momentum", 0.9))]


def _running(
    op: Builder, batch: Sequence[ir.Value], given: Sequence[ir.Value | None], momentum: float
) -> list[ir.Value]:
    new = []
    for statistic, old in zip(batch, given, strict=True):
        assert old is not None
        assert old.dtype is not None
        same = op.cast(statistic, old.dtype)
        new.append(old * momentum + same * (1 - momentum) if momentum else same)
    return new


_LOWERINGS: dict[str, Replacement] = {"BatchNormalization": _batch_normalization, "MatMul": _product_of_matrices}

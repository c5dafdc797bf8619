"""Products of groups of rows, each with a matrix of its own: the experts of a mixture.

Exporters cannot write them: how many rows a group has follows from data. Here an operator takes their place, and later
one product of all groups, filled up to the size of the largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor

from onward.graph.builder import Builder
from onward.graph.replacement import replace_node

_DOMAIN, _PRODUCTS = "onward.torch", "GroupedProducts"


def grouped_products(
    x: Tensor,
    weight: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor | None:
    """An operator for the rows of x before each offset times the matrix of that group."""
    if offs is None or bias is not None or (x.ndim, weight.ndim) != (2, 3) or out_dtype not in (None, x.dtype):
        return None
    shape = (x.shape[0], weight.shape[2])
    inputs: Sequence[Any] = (x, weight, offs.to(torch.int64))
    return torch.onnx.ops.symbolic(f"{_DOMAIN}::{_PRODUCTS}", inputs, dtype=x.dtype, shape=shape, version=1)


def write_groups(model: ir.Model) -> None:
    """Write such operators by standard ones, in place."""
    op = Builder(model.graph, model.opset_imports[""])
    for node in list(model.graph):
        if (node.domain, node.op_type) == (_DOMAIN, _PRODUCTS):
            replace_node(op, node, _products)


def _products(op: Builder, node: ir.Node) -> list[ir.Value]:
    """tiles[e, i] = x[start[e] + i], or zeros behind the last row of a group; y = tiles @ weight, row by row.

    Rows behind the last group are zeros, too.
    """
    x, weight, ends = node.inputs
    assert x is not None
    assert weight is not None
    assert ends is not None
    starts = op.Concat(op.constant([0], ir.DataType.INT64), op.Slice(ends, [0], [-1], [0]), axis=0)
    counts = ends - starts
    # One row at least: onnxruntime's products of nothing are not to be relied on.
    capacity = op.Max(op.ReduceMax(counts, [0], keepdims=0), op.constant(1, ir.DataType.INT64))
    rows = op.Squeeze(op.Shape(x, start=0, end=1), [0])
    place = _range(op, capacity)
    taken = op.Where(op.Less(place, op.Unsqueeze(counts, [1])), op.Unsqueeze(starts, [1]) + place, rows)
    tiles = op.Gather(_with_zeros(op, x), taken, axis=0)
    products = op.MatMul(tiles, weight)
    row = _range(op, rows)
    begun = op.cast(op.GreaterOrEqual(op.Unsqueeze(row, [1]), ends), ir.DataType.INT64)
    group = op.ReduceSum(begun, [1], keepdims=0)
    count = op.Squeeze(op.Shape(ends), [0])
    own = op.Less(group, count)
    start = op.Gather(starts, op.Where(own, group, op.constant(0, ir.DataType.INT64)), axis=0)
    found = op.Where(own, group * capacity + row - start, count * capacity)
    width = op.Concat(op.constant([-1], ir.DataType.INT64), op.Shape(weight, start=2, end=3), axis=0)
    flat = op.Reshape(products, width)
    return [op.Gather(_with_zeros(op, flat), found, axis=0)]


def _range(op: Builder, count: ir.Value) -> ir.Value:
    zero, one = (op.constant(number, ir.DataType.INT64) for number in (0, 1))
    found: ir.Value = op.Range(zero, count, one)
    return found


def _with_zeros(op: Builder, x: ir.Value) -> ir.Value:
    """One more row."""
    row = op.constant([0], x.dtype)
    width = op.Shape(x, start=1, end=2)
    one = op.constant([1], ir.DataType.INT64)
    found: ir.Value = op.Concat(x, op.Expand(row, op.Concat(one, width, axis=0)), axis=0)
    return found

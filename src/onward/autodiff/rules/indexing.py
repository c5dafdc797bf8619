"""Operators that select elements by index."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.autodiff.registry import vjp
from onward.autodiff.rules.placement import Extent, embed, extent, joined, positions, put, put_flat, put_slices
from onward.graph.builder import Builder
from onward.graph.nodes import attribute, constant_of
from onward.graph.shapes import dims, rank

Row = list[ir.Value | None]


@vjp("Gather")
def gather(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """Each slice of dy added where it was taken from; indices that count up are those of a Slice."""
    x, indices = node.inputs
    axis = attribute(node, "axis", 0) % rank(x)
    size, slices = extent(op, x, axis), gathered_slices(op, node, dy)
    known = constant_of(indices)
    run = None if known is None else run_of(known, size)
    if run is not None:
        return [embed(op, slices, x, {axis: run if run[0] >= 0 else (size + run[0], run[1])})]
    distinct = known is not None and is_distinct(known.reshape(-1, 1), (dims(x) or ())[axis : axis + 1])
    return [put_slices(op, x, indices, slices, axis, distinct=distinct)]


def gathered_slices(op: Builder, node: ir.Node, dy: ir.Value) -> ir.Value:
    """dy of a Gather with the axes of the indices as one, in the place of the axis of x that they index."""
    x, indices = node.inputs
    axis, ndim = attribute(node, "axis", 0) % rank(x), None if dims(indices) is None else rank(indices)
    if ndim == 0:
        return op.Unsqueeze(dy, [axis])
    if ndim == 1:
        return dy
    return op.reshape(dy, joined(op, [-1 if other == axis else extent(op, x, other) for other in range(rank(x))]))


def run_of(indices: np.ndarray, size: Extent) -> tuple[int, int] | None:
    """The first and the number of indices that count up by one; a negative one counts from an end that is not known."""
    if not indices.size:
        return None
    first, last = int(indices.flat[0]), int(indices.flat[-1])
    counting = np.array_equal(indices.reshape(-1), np.arange(first, first + indices.size))
    if not counting or first < 0 <= last:
        return None
    return first % size if isinstance(size, int) else first, indices.size


def is_distinct(tuples: np.ndarray, sizes: tuple[int | str | None, ...]) -> bool:
    """Whether indices `[N, K]` into axes of these sizes certainly differ from each other."""
    tuples = tuples.astype(np.int64)
    for column, size in enumerate(sizes[: tuples.shape[1]]):
        if isinstance(size, int):
            tuples[:, column] %= size
        elif tuples[:, column].min(initial=0) < 0:
            return False
    return len(np.unique(tuples, axis=0)) == len(tuples)


@vjp("GatherElements")
def gather_elements(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    x, indices = node.inputs
    return [put(op, op.zeros_like(x), indices, dy, attribute(node, "axis", 0))]


@vjp("GatherND")
def gather_nd(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    x, indices = node.inputs
    batch_dims = attribute(node, "batch_dims", 0)
    known = constant_of(indices)
    sizes = dims(x) or (None,) * (0 if known is None else known.shape[-1])
    if known is not None and not batch_dims and is_distinct(known.reshape(-1, known.shape[-1]), sizes):
        return [op.ScatterND(op.zeros_like(x), indices, dy)]
    return [put_nd(op, op.zeros_like(x), indices, dy, batch_dims)]


def put_nd(op: Builder, data: ir.Value, indices: ir.Value, updates: ir.Value, batch_dims: int = 0) -> ir.Value:
    """`data` with `updates` added at index tuples, which may repeat; see `put` for why this is not a ScatterND."""
    shape = op.shape(data) if data.shape is not None else op.Shape(data)
    lead = op.Add(op.dim(indices, -1), batch_dims) if batch_dims else op.dim(indices, -1)
    head = op.Slice(shape, [0], lead)
    numbers = op.Reshape(op.Range(0, op.ReduceProd(head, keepdims=0), 1), head)
    places = op.Reshape(op.GatherND(numbers, indices, batch_dims=batch_dims), [-1, 1])
    tail = op.ReduceProd(op.Slice(shape, lead, [np.iinfo(np.int64).max]), keepdims=1)
    rows = op.Reshape(updates, op.Concat([-1], tail, axis=0))
    table = op.Reshape(data, op.Concat([-1], tail, axis=0))
    total = put(op, table, op.Expand(places, op.Shape(rows)), rows, 0)
    return op.Reshape(total, shape)


@vjp("TopK")
def topk(op: Builder, node: ir.Node, dy: ir.Value | None, _: ir.Value | None) -> Row:
    x = node.inputs[0]
    if dy is None:
        return [None]
    return [put(op, op.zeros_like(x), op.forward_output(node, 1), dy, attribute(node, "axis", -1), distinct=True)]


@vjp("Compress")
def compress(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """Without an axis, x is flattened."""
    x, condition = node.inputs
    if "axis" not in node.attributes:
        places = op.Compress(positions(op, x), condition)
        return [put_flat(op, x, places, dy, distinct=True)]
    axis = node.attributes["axis"].as_int() % rank(x)
    places = op.Compress(op.Range(0, op.size(x, [axis]), 1), condition, axis=0)
    return [put_slices(op, x, places, dy, axis, distinct=True)]


@vjp("OneHot")
def one_hot(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """`values` are (off, on): each gets the sum of dy where it was written."""
    indices, depth, values = node.inputs
    on = op.OneHot(indices, depth, op.constant([0, 1], values.dtype), axis=attribute(node, "axis", -1))
    sums = [op.Reshape(op.ReduceSum(dy * where, keepdims=0), [1]) for where in (1 - on, on)]
    return [None, None, op.Concat(*sums, axis=0)]


@vjp("Unique")
def unique(op: Builder, node: ir.Node, dy: ir.Value | None, *_: ir.Value | None) -> Row:
    """Equal elements (or slices) share the cotangent of their one value evenly, as elements that tie for a maximum."""
    x = node.inputs[0]
    if dy is None:
        return [None]
    inverse, counts = op.forward_output(node, 2), op.cast(op.forward_output(node, 3), x.dtype)
    if "axis" not in node.attributes:
        return [op.reshape_like(op.Gather(dy / counts, inverse, axis=0), x)]
    axis = node.attributes["axis"].as_int() % rank(x)
    share = dy / op.Reshape(counts, [-1 if other == axis else 1 for other in range(rank(x))])
    return [op.Gather(share, inverse, axis=axis)]

"""Operators that select elements by index."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.autodiff.registry import vjp
from onward.autodiff.rules.placement import embed, extent, joined, positions, put, put_flat, put_slices
from onward.graph.builder import Builder
from onward.graph.nodes import attribute, constant_of
from onward.graph.shapes import dims, rank, static_shape

Row = list[ir.Value | None]

# A product with a one-hot matrix is faster than a scatter for tables of few rows. Measured on two cores with
# onnxruntime 1.31: 4096 indices into 64 rows of 256 take 1.5 ms against 53 ms, 1024 into 512 rows of 768 take 3 ms
# against 34 ms, 4096 into 1024 rows of 256 take 76 ms against 47 ms.
_FEW_ROWS, _SMALL_TABLE = 64, 512


@vjp("Gather")
def gather(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """Each slice of dy added where it was taken from."""
    x, indices = node.inputs
    axis = attribute(node, "axis", 0) % rank(x)
    size = extent(op, x, axis)
    slices = _slices(op, dy, x, indices, axis)
    known = constant_of(indices)
    if known is not None and known.size:
        run = _run(known.reshape(-1), size)
        if run is not None:
            begin = size + run if run < 0 else run
            return [embed(op, slices, x, {axis: (begin, known.size)})]
        if isinstance(size, int) and is_distinct(known.reshape(-1, 1), (size,)):
            return [_gather_back(op, slices, known.reshape(-1) % size, size, axis, rank(x))]
    if axis == 0 and _is_small_table(x):
        row = op.cast(op.reshape(indices, [1, -1]), ir.DataType.INT64)
        # Negative indices count from the end, hence the Mod.
        hits = op.Equal(op.constant(np.arange(size).reshape(-1, 1), ir.DataType.INT64), op.Mod(row, size))
        return [op.MatMul(op.cast(hits, x.dtype), slices)]
    return [put_slices(op, x, indices, slices, axis, distinct=False)]


def _is_small_table(x: ir.Value) -> bool:
    """Whether x is `[rows, columns]` with few rows, and the one-hot matrix no larger than the rows it selects."""
    shape = static_shape(x)
    return shape is not None and len(shape) == 2 and 0 < shape[0] <= max(_FEW_ROWS, min(_SMALL_TABLE, shape[1]))


def _slices(op: Builder, dy: ir.Value, x: ir.Value, indices: ir.Value, axis: int) -> ir.Value:
    """dy with the axes of `indices` as one, in the place of the axis of x that they index."""
    ndim = None if dims(indices) is None else rank(indices)
    if ndim == 0:
        return op.Unsqueeze(dy, [axis])
    if ndim == 1:
        return dy
    return op.reshape(dy, joined(op, [-1 if other == axis else extent(op, x, other) for other in range(rank(x))]))


def _run(indices: np.ndarray, size: int | ir.Value) -> int | None:
    """The first of indices that count up by one, None for others; negative where it counts from an unknown end."""
    first = int(indices[0])
    if not np.array_equal(indices, np.arange(first, first + indices.size)) or first < 0 <= first + indices.size - 1:
        return None
    return first % size if isinstance(size, int) else first


def is_distinct(tuples: np.ndarray, sizes: tuple[int | str | None, ...]) -> bool:
    """Whether indices `[N, K]` into axes of these sizes certainly differ from each other."""
    tuples = tuples.astype(np.int64)
    for column, size in enumerate(sizes[: tuples.shape[1]]):
        if isinstance(size, int):
            tuples[:, column] %= size
        elif tuples[:, column].min(initial=0) < 0:
            return False
    return len(np.unique(tuples, axis=0)) == len(tuples)


def _gather_back(op: Builder, slices: ir.Value, places: np.ndarray, size: int, axis: int, ndim: int) -> ir.Value:
    """Slices at distinct known places, gathered from there; places that nobody named get an appended zero."""
    sources = np.full(size, len(places))
    sources[places] = np.arange(len(places))
    if len(places) < size:
        pads = np.zeros(2 * ndim, np.int64)
        pads[ndim + axis] = 1
        slices = op.Pad(slices, pads)
    return op.Gather(slices, sources, axis=axis)


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

"""Put what an operator selected back where it came from: the transposes of slicing, padding and indexing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.shapes import dims, rank

Extent = int | ir.Value  # a size or position: known, or an int64 value `[1]`

_NARROW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def extent(op: Builder, x: ir.Value, axis: int) -> Extent:
    """The size of an axis."""
    known = dims(x)
    size = None if known is None else known[axis]
    return size if isinstance(size, int) else op.dim(x, axis)


def joined(op: Builder, extents: Sequence[Extent]) -> list[int] | ir.Value:
    """Extents as one list: integers when all are known, else an int64 value."""
    if all(isinstance(extent, int) for extent in extents):
        return [extent for extent in extents if isinstance(extent, int)]
    parts: list[list[int] | ir.Value] = []
    for extent in extents:
        if isinstance(extent, ir.Value):
            parts.append(extent)
        elif parts and isinstance(parts[-1], list):
            parts[-1].append(extent)
        else:
            parts.append([extent])
    return op.Concat(*parts, axis=0)


def identity(op: Builder, size: Extent, dtype: ir.DataType | None) -> ir.Value:
    """The identity matrix."""
    assert dtype is not None
    if isinstance(size, int):
        return op.constant(np.eye(size), dtype)
    number = op.Range(0, op.Squeeze(size, [0]), 1)
    return op.cast(op.Equal(op.Unsqueeze(number, [1]), op.Unsqueeze(number, [0])), dtype)


def least(op: Builder, a: Extent, b: Extent) -> Extent:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    return op.Where(op.Less(a, b), a, b)  # integer Min came with opset 12 only


def most(op: Builder, a: Extent, b: Extent) -> Extent:
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return op.Where(op.Less(a, b), b, a)


def embed(op: Builder, part: ir.Value, x: ir.Value, spans: Mapping[int, tuple[Extent, Extent]]) -> ir.Value:
    """Zeros of the shape of x that hold `part` in one block; spans: axis -> (first position, size of the block)."""
    before: list[Extent] = [0] * rank(x)
    after: list[Extent] = [0] * rank(x)
    for axis, (begin, size) in spans.items():
        before[axis] = begin
        after[axis] = extent(op, x, axis) - begin - size
    pads = joined(op, before + after)
    return part if not isinstance(pads, ir.Value) and not any(pads) else op.Pad(part, pads)


def positions(op: Builder, x: ir.Value) -> ir.Value:
    """For each element of x its position when x is flattened."""
    return op.Reshape(op.Range(0, op.size(x), 1), op.shape(x))


def put_flat(op: Builder, x: ir.Value, places: ir.Value, updates: ir.Value, *, distinct: bool) -> ir.Value:
    """Zeros of the shape of x with `updates` added at flat positions `places`, of the same shape."""
    assert x.dtype is not None
    zeros = op.full(op.Reshape(op.size(x), [1]), 0, x.dtype)
    flat = put(op, zeros, op.Reshape(places, [-1]), op.Reshape(updates, [-1]), 0, distinct=distinct)
    return op.reshape_like(flat, x)


def put_slices(op: Builder, x: ir.Value, places: ir.Value, slices: ir.Value, axis: int, *, distinct: bool) -> ir.Value:
    """Zeros of the shape of x with slices `[..., M, ...]` added at `places`, integers of any shape with M elements."""
    index = op.Reshape(places, [-1 if other == axis else 1 for other in range(rank(x))])
    if rank(x) > 1:
        index = op.Expand(index, op.Shape(slices))
    return put(op, op.zeros_like(x), index, slices, axis, distinct=distinct)


def put(
    op: Builder, data: ir.Value, indices: ir.Value, updates: ir.Value, axis: int, *, distinct: bool = False
) -> ir.Value:
    """`data` with `updates` added at `indices`, which may repeat; where they do not and data is 0, `distinct`.

    ScatterElements, never ScatterND: onnxruntime's CPU kernel of the latter adds from several threads without
    locking, so updates that share a place get lost. Nor can onnxruntime add 16-bit floats, and float32 sums better.
    """
    if distinct:
        return op.ScatterElements(data, indices, updates, axis=axis)
    if data.dtype not in _NARROW:
        return op.ScatterElements(data, indices, updates, axis=axis, reduction="add")
    wide = ir.DataType.FLOAT
    total = put(op, op.cast(data, wide), indices, op.cast(updates, wide), axis)
    return op.cast(total, data.dtype)

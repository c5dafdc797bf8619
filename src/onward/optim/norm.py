"""The norm of gradients, accurate however many elements there are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from onward.errors import OnwardError
from onward.graph.branching import branch
from onward.graph.builder import Builder
from onward.graph.shapes import dims, static_size
from onward.graph.width import is_narrow
from onward.optim.scalar import Number, Scalar, number, sqrt

_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)

# onnxruntime adds up one element after the other in float32: the sum of four million squares is wrong by 1.6e-4. Up to
# this many elements it is right to 1e-6; larger tensors are added up in rows first.
_LONGEST_SUM = 2**16


# What gradients are divided by before they are squared is at least this, so that zeros stay zeros.
_TINY = 1e-30


def norm(op: Builder, tensors: Sequence[ir.Value]) -> Number:
    """The root of the sum of the squares of all elements."""
    return _scaled_norm(op, tensors) if is_narrow() else sqrt(number(op, sum_of_squares(op, tensors)))


def _scaled_norm(op: Builder, tensors: Sequence[ir.Value]) -> Number:
    """largest sqrt(sum (x / largest)^2): without double precision, no square may be larger than a float is.

    A tensor with one NaN has none but NaN: some devices take the largest of the other elements, but no sum of theirs.
    """
    filled = [op.cast(x, ir.DataType.FLOAT) for x in tensors if static_size(x) != 0]
    each = [op.ReduceMax(op.Abs(op.Reshape(x, [-1])), [0], keepdims=1) for x in filled]
    largest = op.ReduceMax(each[0] if len(each) == 1 else op.Concat(*each, axis=0), [0], keepdims=0)
    bound = op.Where(op.Greater(largest, _TINY), largest, _TINY)
    return sqrt(number(op, _sum(op, [x / bound for x in filled]))) * Scalar(op, bound)


def sum_of_squares(op: Builder, tensors: Sequence[ir.Value]) -> ir.Value:
    """The sum of the squares of all elements as a scalar in double, which holds that of all float32 there are.

    It is added up in float32, where that is what the tensors have, and once more in double should it overflow: then,
    a norm would be infinite, and clipping by it would leave nothing of the gradients.
    """
    if not tensors:
        raise OnwardError("the norm of no gradients at all was asked for; give at least one gradient")
    double = ir.DataType.DOUBLE
    total = _sum(op, [op.cast(x, ir.DataType.FLOAT) if x.dtype in _HALF else x for x in tensors])
    if total.dtype == double:
        return total
    return branch(
        op,
        op.Less(total, math.inf),
        lambda inner: inner.cast(total, double),
        lambda inner: _sum(inner, [inner.cast(x, double) for x in tensors]),
    )


def _sum(op: Builder, tensors: Sequence[ir.Value]) -> ir.Value:
    """The same in the precision of the tensors, or double if they have several."""
    sums = [part for x in tensors for part in _partial_sums(op, x)]
    if len({part.dtype for part in sums}) > 1:
        sums = [op.cast(part, ir.DataType.DOUBLE) for part in sums]
    return sums[0] if len(sums) == 1 else op.Sum(*sums)


def _partial_sums(op: Builder, x: ir.Value) -> list[ir.Value]:
    size, known = static_size(x), dims(x)
    if size is None:
        if known is None or len(known) < 2:
            return [op.ReduceSumSquare(x, keepdims=0)]
        return [op.ReduceSum(op.ReduceSumSquare(x, [-1], keepdims=0), keepdims=0)]
    if size <= _LONGEST_SUM:
        return [op.ReduceSumSquare(x, keepdims=0)]
    columns = _divisor_near_root(size)
    if size // columns <= _LONGEST_SUM:
        rows = op.reshape(x, [size // columns, columns])
        return [op.ReduceSum(op.ReduceSumSquare(rows, [1], keepdims=0), keepdims=0)]
    # No such divisor: a round part and a short rest, at the price of a copy.
    flat, whole = op.reshape(x, [size]), size - size % 1024
    ends = ((0, whole), (whole, size))
    parts = [op.Slice(flat, [start], [end], [0]) for start, end in ends]
    for part, (start, end) in zip(parts, ends, strict=True):
        part.shape = ir.Shape([end - start])
    return [total for part in parts for total in _partial_sums(op, part)]


def _divisor_near_root(size: int) -> int:
    return next(divisor for divisor in range(math.isqrt(size), 0, -1) if size % divisor == 0)

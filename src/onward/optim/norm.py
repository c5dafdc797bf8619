"""The norm of gradients, accurate however many elements there are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.graph.shapes import dims, static_size

_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)

# onnxruntime adds up one element after the other in float32: the sum of four million squares is wrong by 1.6e-4. Up to
# this many elements it is right to 1e-6; larger tensors are added up in rows first.
_LONGEST_SUM = 2**16


def sum_of_squares(op: Builder, tensors: Sequence[ir.Value]) -> ir.Value:
    """The sum of the squares of all elements as a scalar, in float32 where the tensors are in half precision."""
    if not tensors:
        raise OnwardError("the norm of no gradients at all was asked for; give at least one gradient")
    wide = [op.cast(x, ir.DataType.FLOAT) if x.dtype in _HALF else x for x in tensors]
    sums = [part for x in wide for part in _partial_sums(op, x)]
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

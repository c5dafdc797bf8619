"""Pooling, and LRN, which pools over channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onward.autodiff.registry import vjp
from onward.autodiff.rules.pool_window import (
    always_full,
    begins_behind,
    counts,
    cuts_the_image,
    may_be_empty,
    may_miss,
    pooling_window,
)
from onward.autodiff.rules.window import Window, slide_back, spatial, spatial_shape
from onward.errors import NotDifferentiableError
from onward.graph.builder import Builder
from onward.graph.kernel_sizes import counts_whole_kernel
from onward.graph.nodes import attribute, constant_of, describe
from onward.graph.opsets import runtime_is_before
from onward.graph.restating import stated
from onward.graph.shapes import rank, static_size

Row = Sequence[ir.Value | None]


@vjp("MaxPool")
def max_pool(op: Builder, node: ir.Node, dy: ir.Value, _: None = None) -> Row:
    """Each dy goes to the element that was the largest of its window; of equal ones the runtime chooses the first."""
    x, indices = node.inputs[0], op.forward_output(node, 1)
    window = pooling_window(op, node)
    _refuse_windows_behind(node, window)
    overlap = any(stride < extent for stride, extent in zip(window.strides, window.extents, strict=True))
    places = op.Reshape(indices, [-1])
    if may_miss(window, spatial(x, len(window.axes))):
        # A window that reads nothing has no index: what onnxruntime writes is that of any element, or of none.
        found = counts(op, node, window, padding=False)
        reads = op.Greater(found if isinstance(found, ir.Value) else op.constant(found, ir.DataType.INT64), 0)
        places = op.Where(op.Reshape(op.expand_like(reads, dy), [-1]), places, 0)
        dy = op.Where(reads, dy, 0)
    size = static_size(x)
    zeros = op.full([size] if size is not None else op.Reshape(op.Size(x), [1]), 0, x.dtype)
    # One element may be the largest of several windows.
    reduction = "add" if overlap else None
    flat = op.ScatterElements(zeros, places, op.Reshape(dy, [-1]), axis=0, reduction=reduction)
    if not attribute(node, "storage_order", 0):
        return [op.reshape_like(flat, x)]
    # Indices then count the spatial axes from the first to the last: a tensor with these axes reversed.
    perm = [0, 1, *reversed(window.axes)]
    columns = op.reshape(flat, op.Gather(op.shape(x), np.array(perm, np.int64), axis=0))
    return [op.Transpose(columns, perm=perm)]


@vjp("MaxUnpool")
def max_unpool(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """The inverse of MaxPool: y[indices] = x, so dx = dy[indices].

    With output_shape the standard counts indices in the shape before it was enlarged; we follow onnxruntime, which
    counts them in output_shape.
    """
    x, indices = node.inputs[:2]
    return [op.reshape_like(op.Gather(op.Reshape(dy, [-1]), op.Reshape(indices, [-1]), axis=0), x)]


@vjp("AveragePool")
def average_pool(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """Each dy is shared by the elements of its window, over the number that the mean was taken of."""
    window = pooling_window(op, node)
    if cuts_the_image(node, window):
        raise NotDifferentiableError(
            f"{describe(node)} has dilations and strides beyond its kernel and auto_pad SAME: its padding is negative, "
            "and onnxruntime then leaves out elements at the end that the standard does not. Write its pads down."
        )
    _refuse_windows_behind(node, window)
    return [_spread(op, dy / _divisors(op, node, window), node, window)]


def _refuse_windows_behind(node: ir.Node, window: Window) -> None:
    """onnxruntime 1.20 runs windows that its own inference does not count."""
    if runtime_is_before(21) and begins_behind(node, window):
        raise NotDifferentiableError(
            f"{describe(node)} has windows that begin behind the image, by ceil_mode. onnxruntime before 1.21 makes of "
            "them what the standard does not say. Install a newer onnxruntime, or set ceil_mode=0."
        )


def _divisors(op: Builder, node: ir.Node, window: Window) -> ir.Value | float | np.ndarray:
    """What each mean was divided by: a number, or an array that broadcasts to y."""
    padding = bool(attribute(node, "count_include_pad", 0))
    unpadded = window.start is None and window.after is not None and not any(window.before + window.after)
    if counts_whole_kernel(node, op.opset) or ((padding or unpadded) and always_full(window)):
        return float(math.prod(window.kernel))
    found = counts(op, node, window, padding=padding)
    if isinstance(found, ir.Value):
        return op.cast(op.Max(found, 1), node.inputs[0].dtype)
    # The mean of nothing is 0.
    return np.maximum(found, 1)


def _spread(op: Builder, dy: ir.Value, node: ir.Node, window: Window) -> ir.Value:
    """Add each dy to all elements of its window: the adjoint of the sum over windows, every channel by itself."""
    x, y, n = node.inputs[0], node.outputs[0], len(window.axes)
    if 0 in spatial(y, n):
        return op.full(op.shape(x), 0, x.dtype)
    empty = may_be_empty(window, spatial(y, n))
    if empty:
        # One more window, of zeros: onnxruntime has no transposed convolution of nothing.
        dy = y = op.Pad(dy, [0] * (n + 4) + [int(i in empty) for i in range(n)])
        window = replace(window, after=None)
    sizes = spatial(y, n)
    if all(isinstance(size, int) for size in sizes):
        channels = op.Reshape(dy, [-1, 1, *sizes])
    else:
        channels = op.Reshape(dy, op.Concat([-1, 1], spatial_shape(op, y), axis=0))
    ones = op.constant(np.ones((1, 1, *window.kernel)), x.dtype)
    return op.reshape_like(slide_back(op, channels, ones, x, window, y, group=1), x)


@vjp("GlobalAveragePool")
def global_average_pool(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    x = node.inputs[0]
    size = op.size(x, range(2, rank(x)))
    known = constant_of(size)
    return [op.expand_like(dy / (op.cast(size, x.dtype) if known is None else float(known)), x)]


@vjp("GlobalMaxPool")
def global_max_pool(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """Elements that tie share the cotangent evenly, like those of ReduceMax."""
    x, y = node.inputs[0], node.outputs[0]
    largest = op.cast(op.Equal(x, y), x.dtype)
    return [largest * (dy / op.ReduceSum(largest, list(range(2, rank(x))), keepdims=1))]


@vjp("LpPool", "GlobalLpPool")
def lp_pool(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """y = (sum |x|^p)^(1/p), so dx = sign(x) |x|^(p-1) times the dy y^(1-p) of its windows; 0 where y is 0."""
    x, y, p = node.inputs[0], stated(node.outputs[0]), int(attribute(node, "p", 2))
    zero = op.Equal(y, 0)
    share = dy if p == 1 else op.Where(zero, 0, dy / _power(op, op.Where(zero, 1, y), p - 1))
    if node.op_type == "LpPool":
        window = pooling_window(op, node)
        _refuse_windows_behind(node, window)
        share = _spread(op, share, node, window)
    # sign(x) |x|^(p-1), written without a kink where p is even.
    slope = _power(op, x, p - 1) if p % 2 == 0 else op.Sign(x) * _power(op, x, p - 1) if p > 1 else op.Sign(x)
    return [slope * share]


def _power(op: Builder, x: ir.Value, exponent: int) -> ir.Value:
    return x if exponent == 1 else op.Pow(x, float(exponent))


@vjp("LRN")
def lrn(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """y = x s^-beta with s = bias + alpha m, m the mean of x^2 over `size` channels around (zeros beyond the ends).

    dx = dy s^-beta - 2 alpha beta x m', m' the mean of dy x s^(-beta-1) over the channels whose mean has x.
    """
    x, size = node.inputs[0], attribute(node, "size", 1)
    alpha, beta, bias = attribute(node, "alpha", 1e-4), attribute(node, "beta", 0.75), attribute(node, "bias", 1.0)
    left, right = (size - 1) // 2, size // 2

    def mean(values: ir.Value, before: int, after: int) -> ir.Value:
        rows = op.Unsqueeze(op.Reshape(values, [0, 0, -1]), [1])
        pads = [before, 0, after, 0]
        return op.reshape_like(op.AveragePool(rows, kernel_shape=[size, 1], pads=pads, count_include_pad=1), x)

    scale = mean(x * x, left, right) * alpha + bias
    direct = dy * op.Pow(scale, -beta)
    return [direct - x * mean(direct * x / scale, right, left) * (2 * alpha * beta)]

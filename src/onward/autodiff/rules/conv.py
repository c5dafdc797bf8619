"""Convolutions.

Several forms of each derivative are possible and none is the fastest for all shapes. The rules here take the simplest
ones that do well on usual shapes; a later lowering may choose others by shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onward.autodiff.registry import vjp
from onward.autodiff.rules.rows import RowProducts
from onward.autodiff.rules.window import Window, fit, known_sizes, reach, slide_back, spatial, spatial_shape, window_of
from onward.graph.builder import Builder
from onward.graph.nodes import attribute
from onward.graph.shapes import Dim, dims, rank, static_shape

Row = Sequence[ir.Value | None]

# A weight gradient by slices takes one slice of the data for each place of the kernel; with more of them than this it
# is slower than a convolution (3 x 3: about 2 times faster, 7 x 7: 4 times slower).
_MOST_SLICES = 9


@vjp("Conv")
def conv(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """y[n, o, i] = b[o] + sum over c, j of w[o, c, j] x[n, c, i stride - before + j dilation]."""
    x, w, y, group = node.inputs[0], node.inputs[1], node.outputs[0], attribute(node, "group", 1)
    window = window_of(op, node, attribute(node, "kernel_shape", spatial(w, rank(x) - 2)), w)
    dy, factor = _without_factor(dy, w, y)
    if factor is not None:
        factor = op.Reshape(factor, [-1, *[1] * (rank(w) - 1)])
        w = w * factor
    rows = _row_products(op, dy, w, window, x, y, group)
    dw = rows.weight_gradient(x) if rows else _weight_gradient(op, x, dy, w, window, x, y, group)
    dx = rows.data_gradient() if rows and rows.suit_data else _data_gradient(op, dy, w, x, window, y, group)
    db = _bias_gradient(op, dy, window)
    if factor is not None:
        dw, db = dw * factor, db * op.Reshape(factor, [-1])
    return [dx, dw, db][: len(node.inputs)]


def _without_factor(dy: ir.Value, w: ir.Value, y: ir.Value) -> tuple[ir.Value, ir.Value | None]:
    """dy as a product with a factor for each channel, such as a normalisation after the convolution makes it.

    The factor is as well applied to the weight and its gradient, where these are smaller.
    """
    product, shape, sizes = dy.producer(), static_shape(w), known_sizes(spatial(y, rank(y) - 2))
    if product is None or product.op_type != "Mul" or shape is None or sizes is None:
        return dy, None
    rest, factor = product.inputs
    if rest is None or factor is None or math.prod(shape[1:]) > math.prod(sizes):
        return dy, None
    of_channels = (shape[0], *[1] * len(sizes))
    whole = (dims(rest) or ())[1:] == (shape[0], *sizes)  # nothing but the factor is broadcast
    return (rest, factor) if whole and static_shape(factor) in (of_channels, (1, *of_channels)) else (dy, None)


@vjp("ConvTranspose")
def conv_transpose(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """The adjoint of a convolution with the same weight, so x and y change roles: dx = Conv(dy, w)."""
    x, w, y, group = node.inputs[0], node.inputs[1], node.outputs[0], attribute(node, "group", 1)
    window = _transposed_window(op, node)
    if window.start is not None:
        read, window = fit(op, dy, y, window, x, w)
        dw = _by_convolution(op, read, x, w, window, (None,) * len(window.axes), group)
    else:
        # Positions at the end that x does not reach, made by output_padding or output_shape.
        missed = {axis: after for axis, after in zip(window.axes, window.after or (), strict=True) if after < 0}
        read = op.Slice(dy, [0] * len(missed), list(missed.values()), list(missed)) if missed else dy
        rows = _row_products(op, x, w, window, y, x, group)
        dw = rows.weight_gradient(dy) if rows else _weight_gradient(op, dy, x, w, window, y, x, group)
    pads = [*window.before, *(max(after, 0) for after in window.after or ())]
    dx = op.Conv(read, w, strides=window.strides, dilations=window.dilations, pads=pads, group=group)
    return [dx, dw, _bias_gradient(op, dy, window)][: len(node.inputs)]


def _transposed_window(op: Builder, node: ir.Node) -> Window:
    """The window of the convolution from y to x whose adjoint the node is."""
    x, w = node.inputs[:2]
    kernel = attribute(node, "kernel_shape", spatial(w, rank(x) - 2))
    n = len(kernel)
    strides, dilations = attribute(node, "strides", (1,) * n), attribute(node, "dilations", (1,) * n)
    extra, pads = attribute(node, "output_padding", (0,) * n), attribute(node, "pads", (0,) * 2 * n)
    shape, auto_pad = attribute(node, "output_shape", ()), attribute(node, "auto_pad", "NOTSET")
    window = Window(kernel, strides, dilations, (0,) * n, None)
    if not shape and auto_pad in ("NOTSET", "VALID"):
        before, end = (pads[:n], pads[n:]) if auto_pad == "NOTSET" else ((0,) * n, (0,) * n)
        return replace(window, before=before, after=tuple(pad - add for pad, add in zip(end, extra, strict=True)))
    if shape:
        beyond = window.beyond(shape, spatial(x, n))
    else:  # The wanted size is x times stride, so the number of windows cancels out.
        pairs = zip(window.extents, strides, strict=True)
        beyond = tuple(extent - stride if isinstance(extent, int) else None for extent, stride in pairs)
    known = [reached for reached in beyond if isinstance(reached, int)]
    upper = auto_pad == "SAME_UPPER"
    if len(known) < n:
        total = op.Max(reach(op, x, strides, dilations, kernel, w) + list(extra) - _wanted(op, x, shape, strides), 0)
        return replace(window, start=total / 2 if upper else (total + 1) / 2)
    totals = [max(reached + add, 0) for reached, add in zip(known, extra, strict=True)]
    before = tuple(total // 2 if upper else total - total // 2 for total in totals)
    if shape:
        after = tuple(reached - start for reached, start in zip(known, before, strict=True))
    else:
        rows = zip(totals, before, extra, strict=True)
        after = tuple(total - start - add for total, start, add in rows)
    return replace(window, before=before, after=after)


def _wanted(op: Builder, x: ir.Value, shape: tuple[int, ...], strides: tuple[int, ...]) -> ir.Value:
    return op.constant(shape, ir.DataType.INT64) if shape else spatial_shape(op, x) * list(strides)


def _row_products(
    op: Builder, dy: ir.Value, w: ir.Value, window: Window, x: ir.Value, y: ir.Value, group: int
) -> RowProducts | None:
    """The gradients of Conv from x to y by products of rows, where these are the faster way."""
    n = len(window.axes)
    sizes, counts = known_sizes(spatial(x, n)), known_sizes(spatial(y, n))
    suit = RowProducts.suit(w, window, sizes, counts, group)
    return RowProducts(op, dy, w, window, sizes or [], counts or []) if suit else None


def _bias_gradient(op: Builder, dy: ir.Value, window: Window) -> ir.Value:
    return op.ReduceSum(dy, [0, *window.axes], keepdims=0)


def _data_gradient(
    op: Builder, dy: ir.Value, w: ir.Value, x: ir.Value, window: Window, y: ir.Value, group: int
) -> ir.Value:
    """dx[n, c, i stride - before + j dilation] += w[o, c, j] dy[n, o, i]."""
    shape = static_shape(w)
    if _is_pointwise(window) and (group == 1 or shape is not None):
        return op.Conv(dy, _swapped(op, w, group), group=group)
    if set(window.strides) == {1} and window.after is not None and _is_faster_turned(w, y, group):
        ends = (*window.before, *window.after)
        pads = [extent - 1 - pad for extent, pad in zip(window.extents * 2, ends, strict=True)]
        if min(pads) >= 0:
            turned = _turned(op, _swapped(op, w, group), window)
            return op.Conv(dy, turned, dilations=window.dilations, pads=pads, group=group)
    return slide_back(op, dy, w, x, window, y, group)


def _is_faster_turned(w: ir.Value, y: ir.Value, group: int) -> bool:
    """Whether a convolution with the kernel turned round is faster than ConvTranspose.

    The first collects what each position reads of all outputs, the other what it adds to all channels.
    """
    shape, positions = static_shape(w), known_sizes(spatial(y, rank(w) - 2))
    if shape is None:
        return False
    outputs, channels = shape[:2]
    if channels == 1 and outputs == group:
        return True
    return group == 1 and positions is not None and outputs <= channels <= math.prod(positions)


def _swapped(op: Builder, w: ir.Value, group: int) -> ir.Value:
    """w with inputs and outputs exchanged, in each group."""
    if (static_shape(w) or ())[:2] == (group, 1):
        return w
    if group == 1:
        return op.Transpose(w, perm=[1, 0, *range(2, rank(w))])
    outputs, channels, *kernel = static_shape(w) or ()
    split = op.Reshape(w, [group, outputs // group, channels, *kernel])
    swapped = op.Transpose(split, perm=[0, 2, 1, *range(3, rank(w) + 1)])
    return op.Reshape(swapped, [group * channels, outputs // group, *kernel])


def _turned(op: Builder, w: ir.Value, window: Window) -> ir.Value:
    """w with its spatial axes reversed."""
    n = len(window.axes)
    return op.Slice(w, [-1] * n, [-(2**62)] * n, window.axes, [-1] * n)


def _is_pointwise(window: Window) -> bool:
    """One place, read at every position."""
    unpadded = window.start is None and window.after is not None and not any(window.before + window.after)
    return unpadded and {*window.kernel, *window.strides} == {1}


def _weight_gradient(
    op: Builder, x: ir.Value, dy: ir.Value, w: ir.Value, window: Window, like: ir.Value, y: ir.Value, group: int
) -> ir.Value:
    """dw[o, c, j] = sum over n, i of dy[n, o, i] x[n, c, i stride - before + j dilation].

    `like` and y have the shapes of x and dy, one of which is a cotangent that does not carry it.
    """
    shape, n = static_shape(w), len(window.axes)
    if shape is not None and math.prod(shape[2:]) <= _MOST_SLICES:
        beyond = window.beyond(spatial(like, n), spatial(y, n))
        if _is_pointwise(window) or None not in beyond:
            return _by_matrix_product(op, x, dy, w, window, y, beyond, group)
    if window.start is not None:
        x, window = fit(op, x, like, window, y, w)
        return _by_convolution(op, x, dy, w, window, (None,) * n, group)
    return _by_convolution(op, x, dy, w, window, spatial(like, n), group)


def _by_matrix_product(
    op: Builder,
    x: ir.Value,
    dy: ir.Value,
    w: ir.Value,
    window: Window,
    y: ir.Value,
    beyond: tuple[Dim, ...],
    group: int,
) -> ir.Value:
    """dy as `[O, windows]` times what each place j of the kernel reads, as `[windows, (c, j)]`, for each group."""
    outputs, channels, *kernel = static_shape(w) or ()
    places, swapped, counts = math.prod(kernel), [1, 0, *window.axes], spatial(y, len(kernel))
    # One product for each sample writes [N, O, (c, j)]; one product for all transposes [N, (j, c), windows] first.
    if group == 1 and all(isinstance(count, int) for count in counts) and math.prod(counts) <= outputs:
        reads = _reads(op, op.Transpose(x, perm=swapped), window, counts, beyond)
        left = op.Reshape(op.Transpose(dy, perm=swapped), [outputs, -1])
        product = op.Gemm(left, op.Reshape(_joined(op, reads, 0), [places * channels, -1]), transB=1)
        if places > 1:
            product = op.Transpose(op.Reshape(product, [outputs, places, channels]), perm=[0, 2, 1])
    else:
        read = x if _is_pointwise(window) else _windows(op, x, window, channels * group, beyond)
        groups = [group] if group > 1 else []
        right = op.Reshape(read, [0, *groups, channels * places, -1])
        right = op.Transpose(right, perm=[*range(len(groups) + 1), len(groups) + 2, len(groups) + 1])
        left = op.Reshape(dy, [0, *groups, outputs // group, -1])
        product = op.ReduceSum(op.MatMul(left, right), [0], keepdims=0)
    return op.reshape_like(product, w)


def _windows(op: Builder, x: ir.Value, window: Window, channels: int, beyond: tuple[Dim, ...]) -> ir.Value:
    """What each place of the kernel reads, as `[N, (c, j), ...]`: a filter for each place, which takes what is there.

    One node that onnxruntime shares among threads, where slices of x and their concatenation are many that it does not.
    """
    kernel = [size for size in window.kernel if isinstance(size, int)]
    filters = np.tile(np.eye(math.prod(kernel)), (channels, 1)).reshape(-1, 1, *kernel)
    return op.Conv(
        x,
        op.constant(filters, x.dtype),
        strides=window.strides,
        dilations=window.dilations,
        pads=[*window.before, *(max(reached, 0) for reached in beyond if isinstance(reached, int))],
        group=channels,
    )


def _joined(op: Builder, values: list[ir.Value], axis: int) -> ir.Value:
    return op.Concat(*values, axis=axis) if len(values) > 1 else values[0]


def _reads(
    op: Builder, x: ir.Value, window: Window, counts: tuple[Dim, ...], beyond: tuple[Dim, ...]
) -> list[ir.Value]:
    """For each place of the kernel, what all windows read there."""
    if _is_pointwise(window):
        return [x]
    after = [max(reached, 0) for reached in beyond if isinstance(reached, int)]
    if any((*window.before, *after)):
        x = op.Pad(x, [0, 0, *window.before, 0, 0, *after])
    spans = [(count - 1) * stride + 1 for count, stride in zip(counts, window.strides, strict=True)]
    steps = [list(window.strides)] if max(window.strides) > 1 else []
    return [
        op.Slice(x, list(offset), [o + span for o, span in zip(offset, spans, strict=True)], window.axes, *steps)
        for offset in window.offsets()
    ]


def _by_convolution(
    op: Builder, x: ir.Value, dy: ir.Value, w: ir.Value, window: Window, sizes: tuple[Dim, ...], group: int
) -> ir.Value:
    """A convolution of x with dy as its weight: samples become channels, strides and dilations change places.

    `sizes` are the spatial ones of x.
    x as `[C / group, (group, N), ...]` with dy as `[O, N, ...]` gives `[C / group, O, ...]`.
    """
    axes = window.axes
    swapped = [1, 0, *axes]
    data = op.Transpose(x, perm=swapped)
    if group > 1:
        data = _grouped(op, data, sizes, w, group)
    dw = op.Conv(
        data,
        op.Transpose(dy, perm=swapped),
        strides=window.dilations,
        dilations=window.strides,
        pads=[*window.before, *(max(after, 0) for after in window.after or ())],
        group=group,
    )
    dw = op.Transpose(dw, perm=swapped)
    # Data at the end that no window read may make room for more places than the kernel has.
    return op.Slice(dw, [0] * len(axes), spatial_shape(op, w), axes)


def _grouped(op: Builder, data: ir.Value, sizes: tuple[Dim, ...], w: ir.Value, group: int) -> ir.Value:
    """`[(group, C / group), N, ...]` as `[C / group, (group, N), ...]`."""
    n, channels = len(sizes), (dims(w) or ())[1]
    swapped = [1, 0, *range(2, n + 3)]
    if isinstance(channels, int) and all(isinstance(size, int) for size in sizes):
        split = op.Reshape(data, [group, channels, -1, *sizes])
        return op.Reshape(op.Transpose(split, perm=swapped), [channels, -1, *sizes])
    shape = op.Shape(data)
    split = op.Reshape(data, op.Concat([group, -1], op.Slice(shape, [1], [n + 2], [0]), axis=0))
    joined = op.Concat(op.dim(w, 1), [-1], op.Slice(shape, [2], [n + 2], [0]), axis=0)
    return op.Reshape(op.Transpose(split, perm=swapped), joined)

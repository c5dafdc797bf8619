"""Convolutions.

With the windows of `onward.autodiff.rules.window`, a convolution is

    y[n, o, i] = b[o] + sum over c, j of w[o, c, j] x[n, c, i stride - before + j dilation]

and its derivatives are the same sum over other indices: with respect to x over o and i, with respect to w over n and i.
The training graph has them in forms that are faster for some shapes (`onward.training.lowering.convolution`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from onward.autodiff.registry import vjp
from onward.autodiff.rules.window import Window, fit, known_sizes, reach, slide_back, spatial, spatial_shape, window_of
from onward.graph.builder import Builder
from onward.graph.nodes import attribute
from onward.graph.shapes import dims, rank

Row = Sequence[ir.Value | None]


@vjp("Conv")
def conv(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """dx[n, c, i stride - before + j dilation] += w[o, c, j] dy[n, o, i], a transposed convolution of dy."""
    x, w, y, group = node.inputs[0], node.inputs[1], node.outputs[0], attribute(node, "group", 1)
    window = convolution_window(op, node)
    dx = slide_back(op, dy, w, x, window, y, group)
    read, exact = (x, window) if window.start is None else fit(op, x, x, window, y, w)
    dw = weight_gradient(op, read, dy, w, exact, group)
    return [dx, dw, bias_gradient(op, dy, window)][: len(node.inputs)]


def convolution_window(op: Builder, node: ir.Node) -> Window:
    """The window of a Conv."""
    x, w = node.inputs[:2]
    return window_of(op, node, attribute(node, "kernel_shape", spatial(w, rank(x) - 2)), w)


@vjp("ConvTranspose")
def conv_transpose(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """The adjoint of a convolution with the same weight, so x and y change roles: dx = Conv(dy, w)."""
    x, w, y, group = node.inputs[0], node.inputs[1], node.outputs[0], attribute(node, "group", 1)
    window = transposed_window(op, node)
    read, exact = (dy, window) if window.start is None else fit(op, dy, y, window, x, w)
    dw = weight_gradient(op, read, x, w, exact, group)
    return [slide(op, read, w, exact, group), dw, bias_gradient(op, dy, window)][: len(node.inputs)]


def slide(op: Builder, x: ir.Value, w: ir.Value, window: Window, group: int) -> ir.Value:
    """The convolution itself; negative padding at the end leaves out what no window reads."""
    after = window.after or ()
    missed = {axis: end for axis, end in zip(window.axes, after, strict=True) if end < 0}
    x = op.Slice(x, [0] * len(missed), list(missed.values()), list(missed)) if missed else x
    pads = [*window.before, *(max(end, 0) for end in after)]
    return op.Conv(x, w, strides=window.strides, dilations=window.dilations, pads=pads, group=group)


def bias_gradient(op: Builder, dy: ir.Value, window: Window) -> ir.Value:
    """db[o] = sum over n, i of dy[n, o, i]."""
    return op.ReduceSum(dy, [0, *window.axes], keepdims=0)


def weight_gradient(op: Builder, x: ir.Value, dy: ir.Value, w: ir.Value, window: Window, group: int) -> ir.Value:
    """dw[o, c, j] = sum over n, i of dy[n, o, i] x[n, c, i stride - before + j dilation].

    A convolution of x with dy as its weight: samples become channels, strides and dilations change places.
    x as `[C / group, (group, N), ...]` with dy as `[O, N, ...]` gives `[C / group, O, ...]`.
    """
    axes = window.axes
    swapped = [1, 0, *axes]
    if not any(isinstance(samples, int) and samples > 0 for samples in ((dims(v) or (None,))[0] for v in (x, dy))):
        x, dy = (_with_a_sample(op, value, rank(w)) for value in (x, dy))
    data = op.Transpose(x, perm=swapped)
    if group > 1:
        data = _grouped(op, data, w, group)
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


def _with_a_sample(op: Builder, x: ir.Value, ndim: int) -> ir.Value:
    """x and a sample of zeros, in case that it is an empty batch: onnxruntime hangs in convolutions of no channels."""
    return op.Pad(x, [*[0] * ndim, 1, *[0] * (ndim - 1)])


def _grouped(op: Builder, data: ir.Value, w: ir.Value, group: int) -> ir.Value:
    """`[(group, C / group), N, ...]` as `[C / group, (group, N), ...]`."""
    n, channels = rank(w) - 2, (dims(w) or ())[1]
    known, swapped = known_sizes(spatial(data, n)), [1, 0, *range(2, n + 3)]
    if isinstance(channels, int) and known is not None:
        split = op.Reshape(data, [group, channels, -1, *known])
        return op.Reshape(op.Transpose(split, perm=swapped), [channels, -1, *known])
    width, shape = op.dim(w, 1), op.Shape(data)
    samples, sizes = op.Slice(shape, [1], [2], [0]), op.Slice(shape, [2], [n + 2], [0])
    split = op.reshape(data, op.Concat([group], width, samples, sizes, axis=0), exact=True)
    return op.reshape(op.Transpose(split, perm=swapped), op.Concat(width, samples * group, sizes, axis=0), exact=True)


def transposed_window(op: Builder, node: ir.Node) -> Window:
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

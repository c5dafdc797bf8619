"""Gradients of convolutions in the forms that onnxruntime runs fastest; none of them is that for all shapes.

What they compute is said by the rules in `onward.autodiff.rules.conv`, which do the rest.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import onnx_ir as ir

from onward.autodiff.registry import Cotangents
from onward.autodiff.rules import conv as rules
from onward.autodiff.rules.window import Window, fit, known_sizes, slide_back, spatial
from onward.graph.builder import Builder
from onward.graph.nodes import attribute
from onward.graph.shapes import dims, rank, static_shape
from onward.training.lowering.depthwise import RowProducts
from onward.training.lowering.pooling import scattered_values
from onward.training.lowering.shifts import Shifts, taken

# A weight gradient by a matrix product reads the data once for each place of the kernel; with more of them than this it
# is slower than a convolution (3 x 3: about 2 times faster, 7 x 7: 4 times slower).
_MOST_PLACES = 9
# But what it reads is little if there are far fewer channels than outputs, as in first layers (5 x 5, 3 channels, 32
# outputs: 2 times faster with two threads; 4 channels, 16 outputs: as fast).
_MOST_PLACES_OF_FEW, _FEW = 25, 5
# One product for all samples is faster where each has few windows (16: up to 1.6 times; 25 to 64: 0.4 to 1.0 times).
# And one for each writes this many times more than it reads, at most.
_FEW_WINDOWS, _MOST_WRITTEN = 16, 4


class _Convolution(NamedTuple):
    """A convolution from data of the shape of x to data of the shape of y."""

    x: ir.Value
    w: ir.Value
    y: ir.Value
    window: Window
    group: int

    @property
    def sizes(self) -> list[int] | None:
        """The spatial sizes of x, if they are known."""
        return known_sizes(spatial(self.x, len(self.window.axes)))

    @property
    def counts(self) -> list[int] | None:
        """The spatial sizes of y, if they are known."""
        return known_sizes(spatial(self.y, len(self.window.axes)))

    @property
    def beyond(self) -> list[int] | None:
        """How many positions the last windows read after the data, if that is known; negative: do not read of them."""
        n = len(self.window.axes)
        return known_sizes(self.window.beyond(spatial(self.x, n), spatial(self.y, n)))

    @property
    def is_pointwise(self) -> bool:
        """Whether it reads one position for each of its results, and all of them."""
        window = self.window
        unpadded = window.start is None and window.after is not None and not any(window.before + window.after)
        return unpadded and {*window.kernel, *window.strides} == {1}

    def row_products(self, op: Builder, dy: ir.Value) -> RowProducts | None:
        """The gradients by products of rows, where these are the faster way."""
        sizes, counts = self.sizes, self.counts
        if sizes is None or counts is None or not RowProducts.suit(self.w, self.window, sizes, counts, self.group):
            return None
        return RowProducts(op, dy, self.w, self.window, sizes, counts)


def conv(op: Builder, node: ir.Node, dy: ir.Value) -> Cotangents:
    """The rule of Conv."""
    x, w, y = node.inputs[0], node.inputs[1], node.outputs[0]
    window = rules.convolution_window(op, node)
    dy, factor = _without_factor(dy, w, y)
    if factor is not None:
        factor = op.Reshape(factor, [-1, *[1] * (rank(w) - 1)])
        w = w * factor
    convolution = _Convolution(x, w, y, window, attribute(node, "group", 1))
    rows = convolution.row_products(op, dy)
    dw = rows.weight_gradient(x) if rows else _weight_gradient(op, x, dy, convolution)
    dx = rows.data_gradient() if rows and rows.suit_data else _data_gradient(op, dy, convolution)
    db = _bias_gradient(op, dy, convolution)
    if factor is not None:
        dw, db = dw * factor, db * op.Reshape(factor, [-1])
    return [dx, dw, db][: len(node.inputs)]


def _bias_gradient(op: Builder, dy: ir.Value, convolution: _Convolution) -> ir.Value:
    shape, counts = static_shape(convolution.w), convolution.counts
    pooled = None if shape is None or counts is None else scattered_values(op, dy, shape[0], counts)
    if pooled is None:
        return rules.bias_gradient(op, dy, convolution.window)
    return op.ReduceSum(pooled, [0, 2], keepdims=0)


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


def conv_transpose(op: Builder, node: ir.Node, dy: ir.Value) -> Cotangents:
    """The rule of ConvTranspose: x and y change roles."""
    x, w, y, group = node.inputs[0], node.inputs[1], node.outputs[0], attribute(node, "group", 1)
    window = rules.transposed_window(op, node)
    if window.start is not None:
        return rules.conv_transpose(op, node, dy)
    convolution = _Convolution(y, w, x, window, group)
    rows = convolution.row_products(op, x)
    dw = rows.weight_gradient(dy) if rows else _weight_gradient(op, dy, x, convolution)
    dx = rules.slide(op, dy, w, window, group)
    return [dx, dw, rules.bias_gradient(op, dy, window)][: len(node.inputs)]


# The gradient of the data ------------------------------------------------------------------------------------------


def _data_gradient(op: Builder, dy: ir.Value, convolution: _Convolution) -> ir.Value:
    """Without strides, a convolution of dy with the kernel turned round and inputs and outputs exchanged."""
    x, w, y, window, group = convolution
    if convolution.is_pointwise and (group == 1 or static_shape(w) is not None):
        return op.Conv(dy, _swapped(op, w, group), group=group)
    if set(window.strides) == {1} and window.after is not None and _is_faster_turned(convolution):
        ends = (*window.before, *window.after)
        pads = [extent - 1 - pad for extent, pad in zip(window.extents * 2, ends, strict=True)]
        if min(pads) >= 0:
            turned = _turned(op, _swapped(op, w, group), window)
            return op.Conv(dy, turned, dilations=window.dilations, pads=pads, group=group)
    return slide_back(op, dy, w, x, window, y, group)


def _is_faster_turned(convolution: _Convolution) -> bool:
    """Whether a convolution with the kernel turned round is faster than ConvTranspose.

    The first collects what each position reads of all outputs, the other what it adds to all channels.
    """
    shape, counts, group = static_shape(convolution.w), convolution.counts, convolution.group
    if shape is None:
        return False
    outputs, channels = shape[:2]
    if channels == 1 and outputs == group:
        return True
    return group == 1 and counts is not None and outputs <= channels <= math.prod(counts)


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


# The gradient of the weight ----------------------------------------------------------------------------------------


def _weight_gradient(op: Builder, x: ir.Value, dy: ir.Value, convolution: _Convolution) -> ir.Value:
    """By a matrix product where sizes are known and the kernel is small or taken apart, else as the rule does."""
    like, w, y, window, group = convolution
    shifts = Shifts.of(w, window, convolution.sizes, convolution.counts, group)
    if shifts is not None:
        return shifts.weight_gradient(op, x, dy)
    shape = static_shape(w)
    known = convolution.is_pointwise or (convolution.beyond is not None and convolution.counts is not None)
    if shape is not None and known and math.prod(shape[2:]) <= _most_places(shape[0] // group, shape[1]):
        return _by_matrix_product(op, x, dy, convolution)
    if window.start is not None:
        x, window = fit(op, x, like, window, y, w)
    return rules.weight_gradient(op, x, dy, w, window, group)


def _most_places(outputs: int, channels: int) -> int:
    return _MOST_PLACES_OF_FEW if _FEW * channels < outputs else _MOST_PLACES


def _by_matrix_product(op: Builder, x: ir.Value, dy: ir.Value, convolution: _Convolution) -> ir.Value:
    """dy as `[O, windows]` times what each place j of the kernel reads, as `[windows, (c, j)]`, for each group."""
    w, counts, group, axes = convolution.w, convolution.counts, convolution.group, convolution.window.axes
    outputs, channels, *kernel = static_shape(w) or ()
    places, swapped = math.prod(kernel), [1, 0, *axes]
    # One product for each sample writes [N, O, (c, j)]; one product for all transposes [N, (j, c), windows] first.
    if group == 1 and counts is not None and _is_faster_for_all(math.prod(counts), outputs):
        reads = _reads(op, op.Transpose(x, perm=swapped), convolution)
        left = op.Reshape(op.Transpose(dy, perm=swapped), [outputs, -1])
        product = op.Gemm(left, op.Reshape(_joined(op, reads, 0), [places * channels, -1]), transB=1)
        if places > 1:
            product = op.Transpose(op.Reshape(product, [outputs, places, channels]), perm=[0, 2, 1])
    else:
        read = x if convolution.is_pointwise else _windows(op, x, convolution, channels * group)
        groups = [group] if group > 1 else []
        # From an empty batch Reshape could not tell how many windows there are.
        windows = -1 if counts is None else math.prod(counts)
        right = op.Reshape(read, [0, *groups, channels * places, windows])
        right = op.Transpose(right, perm=[*range(len(groups) + 1), len(groups) + 2, len(groups) + 1])
        left = op.Reshape(dy, [0, *groups, outputs // group, windows])
        product = op.ReduceSum(op.MatMul(left, right), [0], keepdims=0)
    return op.reshape_like(product, w)


def _is_faster_for_all(windows: int, outputs: int) -> bool:
    return windows <= outputs and (windows <= _FEW_WINDOWS or outputs > _MOST_WRITTEN * windows)


def _windows(op: Builder, x: ir.Value, convolution: _Convolution, channels: int) -> ir.Value:
    """What each place of the kernel reads, as `[N, (c, j), ...]`."""
    window = convolution.window
    return taken(
        op,
        x,
        channels,
        tuple(size for size in window.kernel if isinstance(size, int)),
        strides=list(window.strides),
        dilations=list(window.dilations),
        pads=[*window.before, *(max(reached, 0) for reached in convolution.beyond or ())],
    )


def _joined(op: Builder, values: list[ir.Value], axis: int) -> ir.Value:
    return op.Concat(*values, axis=axis) if len(values) > 1 else values[0]


def _reads(op: Builder, x: ir.Value, convolution: _Convolution) -> list[ir.Value]:
    """For each place of the kernel, what all windows read there."""
    if convolution.is_pointwise:
        return [x]
    window = convolution.window
    after = [max(reached, 0) for reached in convolution.beyond or ()]
    if any((*window.before, *after)):
        x = op.Pad(x, [0, 0, *window.before, 0, 0, *after])
    spans = [(count - 1) * stride + 1 for count, stride in zip(convolution.counts or (), window.strides, strict=True)]
    steps = [list(window.strides)] if max(window.strides) > 1 else []
    return [
        op.Slice(x, list(offset), [o + span for o, span in zip(offset, spans, strict=True)], window.axes, *steps)
        for offset in window.offsets()
    ]

"""Convolutions of one filter for each channel, over small images, as matrix products."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onward.autodiff.rules.window import Window, known_sizes, spatial, window_of
from onward.graph.builder import Builder
from onward.graph.nodes import attribute, input_at
from onward.graph.shapes import static_shape

# Elements of the matrix of one channel. onnxruntime convolves channel by channel, which costs about as much for few
# pixels as for many; the matrix costs the square of their number. 6 x 6: 2 to 8 times faster, 12 x 12: as fast.
_LARGEST_MATRIX = 6**2 * 12**2


class Matrices(NamedTuple):
    """A convolution as a product of pixels with a matrix for each channel."""

    values: ir.Value  # [C, pixels, positions]
    pixels: int
    counts: list[int]  # the sizes of the result


def depthwise_convolution(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """y[n, c] = x[n, c] T[c], with images as rows of pixels: one product of `[N, pixels]` for each channel."""
    if not is_small(node):
        return None
    w, bias = node.inputs[1], input_at(node, 2)
    assert w is not None
    channels, *_ = static_shape(w) or ()
    values, pixels, counts = matrices_of(op, node)
    rows = op.Transpose(op.Reshape(node.inputs[0], [0, channels, pixels]), perm=[1, 0, 2])
    product = op.Transpose(op.MatMul(rows, values), perm=[1, 0, 2])
    result = op.Reshape(product, [0, channels, *counts])
    return [result if bias is None else result + op.Reshape(bias, [channels, 1, 1])]


def is_small(node: ir.Node) -> bool:
    """Whether a convolution has one filter for each channel, and small images."""
    x, w, y = node.inputs[0], node.inputs[1], node.outputs[0]
    shape = None if w is None else static_shape(w)
    if x is None or shape is None or len(shape) != 4 or shape[:2] != (attribute(node, "group", 1), 1):
        return False
    sizes, counts = known_sizes(spatial(x, 2)), known_sizes(spatial(y, 2))
    return sizes is not None and counts is not None and math.prod(sizes + counts) <= _LARGEST_MATRIX


def matrices_of(op: Builder, node: ir.Node) -> Matrices:
    """T[c, p, q] is the element of the filter through which output pixel q reads pixel p, or 0."""
    x, w, y = node.inputs[0], node.inputs[1], node.outputs[0]
    assert x is not None
    assert w is not None
    channels, _, *kernel = static_shape(w) or ()
    sizes, counts = known_sizes(spatial(x, 2)) or [], known_sizes(spatial(y, 2)) or []
    window = window_of(op, node, tuple(kernel))
    places, pixels, positions = math.prod(kernel), math.prod(sizes), math.prod(counts)
    reads = _reads(window, sizes, counts).reshape(places, pixels * positions)
    values = op.Reshape(op.MatMul(op.Reshape(w, [channels, places]), reads), [channels, pixels, positions])
    return Matrices(values, pixels, counts)


def _reads(window: Window, sizes: list[int], counts: list[int]) -> np.ndarray:
    """1 where the window at an output pixel reads an input pixel at a place: `[places, *sizes, *counts]`."""
    axes = [
        np.arange(count) * stride - before + np.arange(kernel)[:, None] * dilation == np.arange(size)[:, None, None]
        for kernel, stride, dilation, before, size, count in zip(
            window.kernel, window.strides, window.dilations, window.before, sizes, counts, strict=True
        )
    ]  # each [size, place, position]
    return np.einsum("hai,wbj->abhwij", *axes).astype(np.float32)

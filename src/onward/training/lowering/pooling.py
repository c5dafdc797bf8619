"""Maxima and means of windows that tile an image: their gradients, and the means themselves."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onward.autodiff.registry import Cotangents
from onward.autodiff.rules import pool as rules
from onward.autodiff.rules.window import known_sizes
from onward.graph.builder import Builder
from onward.graph.nodes import attribute, standard_producer
from onward.graph.shapes import dims
from onward.training.lowering.scattering import is_zero
from onward.training.lowering.unpooling import unpooled

# Pixels of the rows that the windows of one row of results read. The products below take time by it. Without them, the
# forward node has to write indices, which makes it five times slower; means are spread by a transposed convolution.
_WIDEST_BAND = 128
_WIDEST_ROW = 32  # of windows that are no more than one row high, which may be taken any number at a time
# From here on onnxruntime has channels side by side in memory behind a convolution, where AveragePool is fast. With
# fewer it takes four to seven times as long as the product.
_CHANNELS_SIDE_BY_SIDE = 16


class _Tiles(NamedTuple):
    """Windows that tile an image, taken so many at a time that the pixels they read are one vector, a band."""

    rows: int
    across: int
    columns: int

    @property
    def windows(self) -> np.ndarray:
        """The window of each pixel of a band."""
        return np.tile(np.repeat(np.arange(self.columns), self.across), self.rows)

    @property
    def spread(self) -> np.ndarray:
        """[columns, pixels], 1 where a pixel belongs to a window."""
        return (np.arange(self.columns)[:, None] == self.windows).astype(np.float32)


def scattered_maximum(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """The gradient of MaxPool: what the rule scatters to indices, by comparing x with the maxima."""
    pool = _pool_of(node)
    if pool is None:
        return None
    y, dy = pool.outputs[0], node.inputs[2]
    tiles = _tiles(pool)
    # Where both are possible, they take as long (28 x 28 with windows of 2 x 2).
    dx = _scattered_by_products(op, tiles, pool.inputs[0], y, dy) if tiles else unpooled(op, pool, dy)
    if dx is None:
        return None
    # Nothing needs the indices any more.
    flat = node.inputs[1].producer()
    assert flat is not None
    flat.replace_input_with(0, y)
    pool.resize_outputs(1)
    return [op.Reshape(dx, [-1])]


def _scattered_by_products(op: Builder, tiles: _Tiles, x: ir.Value, y: ir.Value, dy: ir.Value) -> ir.Value:
    """The rows that one row of windows reads are one vector.

    Matrices of 0 and 1 spread a maximum to its window, and take those away that come after another largest one: the
    first gets all.
    """
    # What comes first in a window is what comes first in the band, row by row.
    window, spread = tiles.windows, op.constant(tiles.spread, x.dtype)
    first = np.eye(len(window)) - np.triu(window[:, None] == window, 1)
    band, row = [-1, len(window)], [-1, tiles.columns]
    # An infinite maximum (a mask) must not make its neighbours in the product NaN; it has no useful slope itself.
    limit = float(np.finfo(np.float32).max)
    maxima = op.Clip(op.Reshape(y, row), -limit, limit)
    largest = op.Equal(op.Reshape(x, band), op.MatMul(maxima, spread))
    chosen = op.Relu(op.MatMul(op.cast(largest, x.dtype), op.constant(first, x.dtype)))
    return chosen * op.MatMul(op.Reshape(dy, row), spread)


def scattered_values(op: Builder, dy: ir.Value, channels: int, sizes: list[int]) -> ir.Value | None:
    """If dy is the gradient of a MaxPool of images `[N, C, *sizes]`: what it scatters, as `[N, C, windows]`.

    That has the same sum for each channel, and is a fraction of it.
    """
    scatter = standard_producer(dy)
    while scatter is not None and scatter.op_type == "Reshape":
        scatter = standard_producer(scatter.inputs[0])
    if scatter is None or scatter.op_type != "ScatterElements" or not is_zero(scatter.inputs[0]):
        return None
    pool = _pool_of(scatter)
    if pool is None:
        return None
    images, counts = (known_sizes((dims(value) or (None,) * 3)[2:]) for value in (pool.inputs[0], pool.outputs[0]))
    if images != sizes or not counts or 0 in counts:  # other images need not be those of one channel
        return None
    return op.Reshape(scatter.inputs[2], [-1, channels, math.prod(counts)])


def average_pool(op: Builder, node: ir.Node, dy: ir.Value) -> Cotangents:
    """The rule of AveragePool: the same matrix spreads a gradient over its window."""
    tiles = _tiles(node)
    if tiles is None:
        return rules.average_pool(op, node, dy)
    x = node.inputs[0]
    spread = op.constant(tiles.spread / (tiles.rows * tiles.across), x.dtype)
    return [op.reshape_like(op.MatMul(op.Reshape(dy, [-1, tiles.columns]), spread), x)]


def mean(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """AveragePool itself: its matrix takes the means of a band."""
    tiles, (_, channels, *_) = _tiles(node), dims(node.inputs[0]) or (None, None)
    if tiles is None or not isinstance(channels, int) or not 0 < channels < _CHANNELS_SIDE_BY_SIDE:
        return None
    x, y = node.inputs[0], node.outputs[0]
    means = op.constant(tiles.spread.T / (tiles.rows * tiles.across), x.dtype)
    product = op.MatMul(op.Reshape(x, [-1, len(tiles.windows)]), means)
    return [op.Reshape(product, [-1, *(dims(y) or ())[1:]])]


def _pool_of(node: ir.Node) -> ir.Node | None:
    """The MaxPool where a node scatters to its indices."""
    flat = node.inputs[1].producer() if node.inputs[1] is not None else None
    indices = flat.inputs[0] if flat is not None and flat.op_type == "Reshape" else None
    pool = None if indices is None else indices.producer()
    if pool is None or pool.op_type != "MaxPool" or pool.domain != "" or indices is not pool.outputs[1]:
        return None
    if attribute(pool, "storage_order", 0) or len(indices.uses()) > 1 or indices.is_graph_output():
        return None
    return pool


def _tiles(pool: ir.Node) -> _Tiles | None:
    """How to take the windows of a node, if they tile images of known size, or rows of it."""
    x, kernel = pool.inputs[0], list(attribute(pool, "kernel_shape", (1,)))
    sizes, counts = (known_sizes((dims(value) or (None,) * 3)[2:]) for value in (x, pool.outputs[0]))
    if len(kernel) > 2 or not sizes or not counts or 0 in sizes or x.dtype != ir.DataType.FLOAT:
        return None
    ones = (1,) * len(kernel)
    apart = list(attribute(pool, "strides", ones)) == kernel and attribute(pool, "dilations", ones) == ones
    # Padding may move windows and leave a rest of the image out, so that as many as would fit say nothing about it.
    apart = apart and not any(attribute(pool, "pads", (0,)))
    if not apart or [count * size for count, size in zip(counts, kernel, strict=True)] != sizes:
        return None
    rows, across, columns = kernel[0] if len(kernel) == 2 else 1, kernel[-1], counts[-1]
    if rows == 1:
        fitting = [count for count in range(1, columns + 1) if columns % count == 0 and count * across <= _WIDEST_ROW]
        columns = max(fitting, default=columns)
    return _Tiles(rows, across, columns) if rows * across * columns <= _WIDEST_BAND else None

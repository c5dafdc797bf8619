"""Gradients of maxima of windows that tile an image."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.autodiff.rules.window import known_sizes
from onward.graph.builder import Builder
from onward.graph.nodes import attribute
from onward.graph.shapes import dims

# Pixels of the rows that the windows of one row of results read. The products below take time by it; without them the
# forward node has to write indices, which makes it five times slower.
_WIDEST_BAND = 128


def scattered_maximum(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """The gradient of MaxPool: what the rule scatters to indices, by comparing x with the maxima.

    With the rows that one row of windows reads as one vector, matrices of 0 and 1 spread a maximum to its window, and
    take those away that come after another largest one: the first gets all.
    """
    pool = _pool_of(node)
    if pool is None:
        return None
    x, y, dy = pool.inputs[0], pool.outputs[0], node.inputs[2]
    rows, across = attribute(pool, "kernel_shape", (1, 1))
    width = (dims(x) or ())[3]
    columns = width // across
    # What comes first in a window is what comes first in the band, row by row.
    window = np.tile(np.arange(width) // across, rows)
    spread = (np.arange(columns)[:, None] == window).astype(np.float32)
    first = np.eye(len(window)) - np.triu(window[:, None] == window, 1)
    band, row = [-1, len(window)], [-1, columns]
    # An infinite maximum (a mask) must not make its neighbours in the product NaN; it has no useful slope itself.
    limit = float(np.finfo(np.float32).max)
    maxima = op.Clip(op.Reshape(y, row), -limit, limit)
    largest = op.Equal(op.Reshape(x, band), op.MatMul(maxima, op.constant(spread, x.dtype)))
    chosen = op.Relu(op.MatMul(op.cast(largest, x.dtype), op.constant(first, x.dtype)))
    dx = chosen * op.MatMul(op.Reshape(dy, row), op.constant(spread, x.dtype))
    # Nothing needs the indices any more.
    flat = node.inputs[1].producer()
    assert flat is not None
    flat.replace_input_with(0, y)
    pool.resize_outputs(1)
    return [op.Reshape(dx, [-1])]


def _pool_of(node: ir.Node) -> ir.Node | None:
    """The MaxPool whose windows tile an image of known size, where a node scatters to its indices."""
    flat = node.inputs[1].producer() if node.inputs[1] is not None else None
    indices = flat.inputs[0] if flat is not None and flat.op_type == "Reshape" else None
    pool = None if indices is None else indices.producer()
    if pool is None or pool.op_type != "MaxPool" or pool.domain != "" or indices is not pool.outputs[1]:
        return None
    if attribute(pool, "storage_order", 0) or len(indices.uses()) > 1 or indices.is_graph_output():
        return None
    x, kernel = pool.inputs[0], list(attribute(pool, "kernel_shape", (1,)))
    sizes, counts = (known_sizes((dims(value) or (None,) * 3)[2:]) for value in (x, pool.outputs[0]))
    if len(kernel) != 2 or sizes is None or counts is None or x.dtype != ir.DataType.FLOAT:
        return None
    apart = list(attribute(pool, "strides", (1, 1))) == kernel and attribute(pool, "dilations", (1, 1)) == (1, 1)
    # Padding may move windows and leave a rest of the image out, so that as many as would fit say nothing about it.
    apart = apart and not any(attribute(pool, "pads", (0,)))
    tile = apart and [count * size for count, size in zip(counts, kernel, strict=True)] == sizes
    return pool if tile and kernel[0] * sizes[1] <= _WIDEST_BAND else None

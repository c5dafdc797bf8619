"""Gradients of maxima by MaxUnpool, which needs indices, and by indices that MaxPool need not write.

MaxPool takes some twenty times longer where it has to say which elements are the largest.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import onnx_ir as ir

from onward.autodiff.rules.window import known_sizes
from onward.graph.builder import Builder
from onward.graph.nodes import attribute
from onward.graph.shapes import dims
from onward.graph.width import is_narrow

# Each element of a window costs one or two more MaxPools, and some passes over the maxima.
_MOST_ELEMENTS = 4
_EXACT = 2**24  # whole numbers below are exact in single precision


def unpooled(op: Builder, pool: ir.Node, dy: ir.Value) -> ir.Value | None:
    """dy at the first largest element of each window, if these are small and do not overlap.

    That element is behind another one exactly if the maximum of all up to the other is less than that of the window. So
    its place is the window's corner, and a step for each such element.
    """
    x, y = pool.inputs[0], pool.outputs[0]
    assert x is not None
    sizes, counts = (known_sizes((dims(value) or (None,) * 3)[2:]) for value in (x, y))
    kernel: list[int] = list(attribute(pool, "kernel_shape", ()))
    # Devices with numbers of 32 bits have no indices of 64.
    if is_narrow() or x.dtype != ir.DataType.FLOAT or not sizes or not counts or 0 in counts:
        return None
    if not _are_apart(pool, kernel, sizes, counts) or math.prod(kernel) > _MOST_ELEMENTS or math.prod(sizes) > _EXACT:
        return None
    images, maxima = op.Reshape(x, [-1, 1, *sizes]), op.Reshape(y, [-1, 1, *counts])
    positions = np.arange(math.prod(sizes)).reshape(sizes)
    corners = positions[np.ix_(*(np.arange(n) * extent for n, extent in zip(counts, kernel, strict=True)))]
    elements = positions[np.ix_(*map(np.arange, kernel))].ravel()
    place = op.constant(corners, x.dtype)
    for last, step in zip(np.ndindex(*kernel), np.diff(elements), strict=False):
        is_ahead = op.cast(op.Less(_maximum_up_to(op, images, last, kernel, counts), maxima), x.dtype)
        place = place + (is_ahead if step == 1 else is_ahead * float(step))
    number = op.Range(op.constant(0), op.Squeeze(op.dim(images, 0), [0]), op.constant(1))
    first = op.Reshape(number * math.prod(sizes), [-1, 1, *(1 for _ in sizes)])
    indices = op.cast(place, ir.DataType.INT64) + first
    tiled = sizes == [count * extent for count, extent in zip(counts, kernel, strict=True)]
    shape = [] if tiled else [op.shape(images)]
    return op.MaxUnpool(op.Reshape(dy, [-1, 1, *counts]), indices, *shape, kernel_shape=kernel, strides=kernel)


def _are_apart(pool: ir.Node, kernel: list[int], sizes: list[int], counts: list[int]) -> bool:
    """Whether each element belongs to one window at most, and no window reads anything else."""
    strides, dilations = ([*attribute(pool, name, [1] * len(kernel))] for name in ("strides", "dilations"))
    # Padding may move windows and leave a rest of the image out, so that as many as would fit say nothing about it.
    unpadded = not any(attribute(pool, "pads", (0,))) and attribute(pool, "auto_pad", "NOTSET") in ("NOTSET", "VALID")
    return (
        unpadded
        and strides == kernel
        and dilations == [1] * len(kernel)
        and len(sizes) == len(kernel)
        and counts == [size // extent for size, extent in zip(sizes, kernel, strict=True)]
    )


def _maximum_up_to(
    op: Builder, images: ir.Value, last: tuple[int, ...], kernel: list[int], counts: list[int]
) -> ir.Value:
    """Of each window, the largest of the elements up to one, row by row: of boxes at the window's corner."""
    boxes = [[*(i + 1 for i in last[:axis]), last[axis], *kernel[axis + 1 :]] for axis in range(len(last) - 1)]
    boxes.append([i + 1 for i in last])
    return functools.reduce(op.Max, [_maxima(op, images, box, kernel, counts) for box in boxes if 0 not in box])


def _maxima(op: Builder, images: ir.Value, box: list[int], strides: list[int], counts: list[int]) -> ir.Value:
    found = op.MaxPool(images, kernel_shape=box, strides=strides)
    sizes = known_sizes((dims(found) or ())[2:])
    if sizes == counts:
        return found
    axes = list(range(2, 2 + len(counts)))  # small boxes fit into the rest of the image, too
    return op.Slice(found, [0] * len(counts), counts, axes)

"""The gradient of a filter from shifted copies: x by the columns of the filter, dy by its rows.

Copies of x for all places of a filter are as many times larger than x as it has places. The sum over all windows stays
the same if, for each row of the filter, dy is moved instead: then there are as many copies of x as columns, and as many
of dy as rows, and one product of the two has all places.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onward.autodiff.rules.window import Window, known_sizes
from onward.graph.builder import Builder
from onward.graph.shapes import static_shape


class Shifts:
    """The weight gradient of y = Conv(x, w), without groups; `sizes` and `counts` are the spatial ones of x and y."""

    def __init__(self, w: ir.Value, window: Window, sizes: list[int], counts: list[int]) -> None:
        self.outputs, self.channels, self.rows, self.columns = static_shape(w) or ()
        self.window, self.height, self.counts = window, sizes[0], counts
        # Row j of the filter meets dy moved by this much, from the last row to the first.
        self.above = (self.rows - 1) * window.dilations[0] - window.before[0]
        self.below = self.height - counts[0] - self.above + (self.rows - 1) * window.dilations[0]
        _, self.right = known_sizes(window.beyond(sizes, counts)) or (0, 0)

    @classmethod
    def of(
        cls, w: ir.Value, window: Window, sizes: list[int] | None, counts: list[int] | None, group: int
    ) -> Shifts | None:
        """None if this is another convolution, or if it has more to copy than by places."""
        shape = static_shape(w)
        if shape is None or len(shape) != 4 or group > 1 or window.start is not None or window.strides[0] > 1:
            return None
        if sizes is None or counts is None or math.prod(counts) <= shape[0]:
            return None  # a product for each sample would be larger than what it is made of
        found = cls(w, window, sizes, counts)
        copied = (found.channels * found.columns + found.outputs * found.rows) * found.height
        by_places = found.channels * found.columns * found.rows * counts[0]
        # As many positions are read as there are windows, unless there is room for more of them.
        fits = min(found.above, found.below, window.before[1]) >= 0 and -found.right < window.strides[1]
        return found if fits and copied < by_places else None

    def weight_gradient(self, op: Builder, x: ir.Value, dy: ir.Value) -> ir.Value:
        """`[O, C, rows, columns]`"""
        (_, stride), (apart, across) = self.window.strides, self.window.dilations
        beside = [0, self.window.before[1], 0, max(self.right, 0)]
        places = self.height * self.counts[1]
        copies = taken(op, x, self.channels, (1, self.columns), strides=[1, stride], dilations=[1, across], pads=beside)
        moved = taken(
            op,
            dy,
            self.outputs,
            (self.rows, 1),
            strides=[1, 1],
            dilations=[apart, 1],
            pads=[self.above, 0, self.below, 0],
            backwards=True,
        )
        left = op.Reshape(moved, [0, self.outputs * self.rows, places])
        right = op.Transpose(op.Reshape(copies, [0, self.channels * self.columns, places]), perm=[0, 2, 1])
        product = op.ReduceSum(op.MatMul(left, right), [0], keepdims=0)
        split = op.Reshape(product, [self.outputs, self.rows, self.channels, self.columns])
        return op.Transpose(split, perm=[0, 2, 1, 3])


def taken(
    op: Builder,
    x: ir.Value,
    channels: int,
    kernel: tuple[int, ...],
    *,
    strides: list[int],
    dilations: list[int],
    pads: list[int],
    backwards: bool = False,
) -> ir.Value:
    """What each place j of a kernel reads, as `[N, (c, j), ...]`: a filter for each place, which takes what is there.

    One node that onnxruntime shares among threads, where slices of x and their concatenation are many that it does not.
    `backwards`: the last place comes first.
    """
    places = np.eye(math.prod(kernel))[:: -1 if backwards else 1]
    filters = op.constant(np.tile(places, (channels, 1)).reshape(-1, 1, *kernel), x.dtype)
    if channels == 1:
        # All of them, whatever the batch. Of constants, onnxruntime would make blocks of channels, and put what it
        # computes by them in order again, which takes longer.
        filters = op.Slice(filters, [0], op.dim(x, 0) + math.prod(kernel), [0])
    return op.Conv(x, filters, strides=strides, dilations=dilations, pads=pads, group=channels)

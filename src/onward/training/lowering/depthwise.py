"""Gradients of a convolution with one filter a channel, as products of the rows of its data.

onnxruntime runs such convolutions channel by channel, and the gradient of a weight is a convolution with a filter as
large as the image. Matrix products with the rows of all samples do more arithmetic and take less time.

Written with lines: `stride` rows of x make a line, and an output and the rows that a filter reads for it are some lines
apart. Data are `[C, (N, lines), ...]`, so that all samples are in one product for each channel.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import onnx_ir as ir

from onward.autodiff.rules.window import Window
from onward.graph.builder import Builder
from onward.graph.shapes import dims, static_shape

# Products take time by the width of the image, and copy dy for each row of the filter. Within these limits they are 2
# to 3 times faster than a convolution with a group for each channel.
_WIDEST, _MOST_ROWS = 96, 7
# Without strides, the gradient of the data is a convolution, which is faster beyond this width.
_WIDEST_WITHOUT_STRIDE = 32


class RowProducts:
    """The gradients of y = Conv(x, w) from dy; `sizes` and `counts` are the spatial ones of x and y."""

    def __init__(
        self, op: Builder, dy: ir.Value, w: ir.Value, window: Window, sizes: list[int], counts: list[int]
    ) -> None:
        self.op, self.dy, self.w = op, dy, w
        self.channels, _, self.places, self.across = static_shape(w) or ()
        (self.height, self.width), (self.rows, self.columns) = sizes, counts
        self.stride = window.strides[0]
        self.lines = -(-self.height // self.stride)
        # From the first row of an output's line to the one that a place of the filter reads, as lines and rows.
        apart = np.arange(self.places) * window.dilations[0] - window.before[0]
        self.shifts, shift = np.unique(apart // self.stride, return_inverse=True)
        self.slots = shift * self.stride + apart % self.stride
        column = np.arange(self.columns)[:, None] * window.strides[1] - window.before[1]
        column = column + np.arange(self.across) * window.dilations[1]
        read = np.arange(self.width)[:, None] == column[:, None]  # [OW, W, places across]
        # Which columns of an output and of a line meet at which place: [(OW, row in line, W), (row in line, place)].
        self.pairs = np.einsum("owp,rs->orwsp", read, np.eye(self.stride)).reshape(-1, self.stride * self.across)

    @staticmethod
    def suit(w: ir.Value, window: Window, sizes: list[int] | None, counts: list[int] | None, group: int) -> bool:
        """Whether this is such a convolution, and its gradient faster this way."""
        shape = static_shape(w)
        if group == 1 or shape is None or len(shape) != 4 or shape[:2] != (group, 1) or shape[2] > _MOST_ROWS:
            return False
        if window.start is not None or sizes is None or counts is None:
            return False
        return max(sizes[1], counts[1]) <= _WIDEST

    @property
    def suit_data(self) -> bool:
        """Whether the gradient of the data is faster this way, too."""
        return self.stride > 1 or self.width <= _WIDEST_WITHOUT_STRIDE

    @cached_property
    def outputs(self) -> ir.Value:
        """For each line of x, the rows of dy that read it: `[C, (N, lines), (shifts, OW)]`."""
        op = self.op
        rows = op.Transpose(self.dy, perm=[1, 0, 2, 3])
        met = np.arange(self.lines)[:, None] - self.shifts
        if not np.array_equal(met.reshape(-1), np.arange(self.rows)):
            # One row of zeros stands for all that lie outside.
            shape = op.Concat([self.channels], op.dim(self.dy, 0), [1, self.columns], axis=0)
            outside = op.full(shape, 0, self.w.dtype or ir.DataType.FLOAT)
            met = np.where((met < 0) | (met >= self.rows), self.rows, met)
            rows = op.Gather(op.Concat(rows, outside, axis=2), met.reshape(-1), axis=2)
        return op.Reshape(rows, [self.channels, -1, len(self.shifts) * self.columns])

    def weight_gradient(self, x: ir.Value) -> ir.Value:
        """The product of dy, transposed, with x has what every pair of columns contributes; a place takes its pairs."""
        op, missing = self.op, self.lines * self.stride - self.height
        x = op.Pad(x, [0, 0, 0, 0, 0, 0, missing, 0]) if missing else x
        lines = op.Reshape(op.Transpose(x, perm=[1, 0, 2, 3]), [self.channels, -1, self.stride * self.width])
        products = op.MatMul(op.Transpose(self.outputs, perm=[0, 2, 1]), lines)
        products = op.Reshape(products, [self.channels, len(self.shifts), -1])
        sums = op.MatMul(products, op.constant(self.pairs, x.dtype))
        sums = op.Reshape(sums, [self.channels, len(self.shifts) * self.stride, self.across])
        if not self._fills_slots:
            sums = op.Gather(sums, self.slots, axis=1)
        samples = (dims(self.dy) or (None,))[0]
        if not isinstance(samples, int):
            # Of several products over nothing, onnxruntime clears the first one only if it fuses them with a Transpose.
            sums = op.Where(op.Greater(op.dim(self.dy, 0), 0), sums, 0)
        return op.reshape_like(sums, self.w)

    def data_gradient(self) -> ir.Value:
        """Each line of dx is the product of the rows of dy that read it with a matrix of the filter's places."""
        op, channels = self.op, self.channels
        w = op.Reshape(self.w, [channels, self.places, self.across])
        if not self._fills_slots:
            chosen = np.arange(len(self.shifts) * self.stride)[:, None] == self.slots
            w = op.MatMul(op.constant(chosen, self.w.dtype), w)
        w = op.Reshape(w, [channels, len(self.shifts), self.stride * self.across])
        matrix = op.MatMul(w, op.constant(np.ascontiguousarray(self.pairs.T), self.w.dtype))
        matrix = op.Reshape(matrix, [channels, len(self.shifts) * self.columns, self.stride * self.width])
        lines = op.MatMul(self.outputs, matrix)
        dx = op.Reshape(lines, [channels, -1, self.lines * self.stride, self.width])
        dx = op.Transpose(dx, perm=[1, 0, 2, 3])
        return op.Slice(dx, [0], [self.height], [2]) if self.lines * self.stride > self.height else dx

    @property
    def _fills_slots(self) -> bool:
        """Whether the rows of the filter are the rows in all lines that it reaches, in order."""
        return np.array_equal(self.slots, np.arange(len(self.shifts) * self.stride))

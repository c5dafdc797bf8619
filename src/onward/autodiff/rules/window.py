"""Sliding windows: the geometry that convolution and pooling share, and the adjoint of sliding."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.nodes import attribute
from onward.graph.shapes import Dim, dims


@dataclass(frozen=True)
class Window:
    """Window number i reads the positions ``i * stride - before + j * dilation``, j < kernel, of each spatial axis.

    Where `before` depends on sizes that are not known, `start` is its value at run time instead, int64 `[n]`. It is
    negative where the first window begins within the data, which only pooling has, and where strides leave gaps.
    """

    kernel: tuple[Dim, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...] | None  # None: not known, or windows may reach further (ceil_mode)
    start: ir.Value | None = None

    @property
    def axes(self) -> list[int]:
        """The spatial axes of a tensor [N, C, ...]."""
        return list(range(2, 2 + len(self.strides)))

    @property
    def extents(self) -> tuple[Dim, ...]:
        """How far a window reaches, dilation included."""
        pairs = zip(self.kernel, self.dilations, strict=True)
        return tuple((size - 1) * dilation + 1 if isinstance(size, int) else None for size, dilation in pairs)

    @property
    def gaps(self) -> bool:
        """Whether windows may leave positions between them."""
        return any(not isinstance(k, int) or k < stride for k, stride in zip(self.kernel, self.strides, strict=True))

    def beyond(self, sizes: Sequence[Dim], counts: Sequence[Dim]) -> tuple[Dim, ...]:
        """How many positions the last window reads after the data; negative: how many of the data no window reads."""
        if self.start is not None:
            return (None,) * len(self.strides)
        rows = zip(sizes, counts, self.strides, self.extents, self.before, strict=True)
        return tuple(
            (count - 1) * stride + extent - before - size
            if isinstance(size, int) and isinstance(count, int) and isinstance(extent, int)
            else None
            for size, count, stride, extent, before in rows
        )

    def offsets(self) -> itertools.product[tuple[int, ...]]:
        """The places of a window of known size, in row-major order, as distances from its start."""
        return itertools.product(*(range(0, size * d, d) for size, d in zip(self.kernel, self.dilations, strict=True)))


def spatial(x: ir.Value, n: int) -> tuple[Dim, ...]:
    """What is known of the n spatial sizes of x, which inference may have left without a rank."""
    known = dims(x)
    return (None,) * n if known is None else known[2:]


def known_sizes(sizes: Sequence[Dim]) -> list[int] | None:
    """Sizes as integers, None where not all are known."""
    known = [size for size in sizes if isinstance(size, int)]
    return known if len(known) == len(sizes) else None


def spatial_shape(op: Builder, x: ir.Value) -> ir.Value:
    """The spatial sizes of x at run time, int64 `[n]`."""
    sizes = (dims(x) or (None,))[2:]
    if sizes and all(isinstance(size, int) for size in sizes):
        return op.constant(sizes, ir.DataType.INT64)
    return op.Slice(op.shape(x), [2], [2**31 - 1], [0])


def window_of(op: Builder, node: ir.Node, kernel: Sequence[Dim], weight: ir.Value | None = None) -> Window:
    """The window of a Conv or of a pooling node; sizes of `kernel` that are not known are those of `weight`."""
    n = len(kernel)
    x, y = node.inputs[0], node.outputs[0]
    strides, dilations = attribute(node, "strides", (1,) * n), attribute(node, "dilations", (1,) * n)
    pads, auto_pad = attribute(node, "pads", (0,) * 2 * n), attribute(node, "auto_pad", "NOTSET")
    before, after = pads[:n], (None if attribute(node, "ceil_mode", 0) else pads[n:])
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        if auto_pad == "VALID":
            before, after = (0,) * n, (None if after is None else (0,) * n)
        return Window(tuple(kernel), strides, dilations, before, after)
    upper = auto_pad == "SAME_UPPER"
    extents = Window(tuple(kernel), strides, dilations, (0,) * n, None).extents
    totals = [
        # With stride 1 there are as many windows as positions, whatever their number.
        extent - 1
        if stride == 1 and isinstance(extent, int)
        else max((-(-size // stride) - 1) * stride + extent - size, 0)
        if isinstance(size, int) and isinstance(extent, int)
        else None
        for size, stride, extent in zip(spatial(x, n), strides, extents, strict=True)
    ]
    if None in totals:
        start = _same_start(op, x, y, strides, dilations, kernel, weight, upper)
        return Window(tuple(kernel), strides, dilations, before, None, start)
    known = [total for total in totals if total is not None]
    before = tuple(total // 2 if upper else total - total // 2 for total in known)
    after = tuple(total - start for total, start in zip(known, before, strict=True))
    return Window(tuple(kernel), strides, dilations, before, after)


def _same_start(
    op: Builder,
    x: ir.Value,
    y: ir.Value,
    strides: Sequence[int],
    dilations: Sequence[int],
    kernel: Sequence[Dim],
    weight: ir.Value | None,
    upper: bool,
) -> ir.Value:
    """The padding before each axis for auto_pad SAME, computed at run time."""
    total = op.Max(reach(op, y, strides, dilations, kernel, weight) - spatial_shape(op, x), 0)
    return total / 2 if upper else (total + 1) / 2


def reach(
    op: Builder,
    y: ir.Value,
    strides: Sequence[int],
    dilations: Sequence[int],
    kernel: Sequence[Dim],
    weight: ir.Value | None,
) -> ir.Value:
    """From the start of the first window to the end of the last, int64 `[n]`: (count - 1) stride + extent."""
    if all(isinstance(size, int) for size in kernel):
        extent = op.constant([(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)], ir.DataType.INT64)
    else:
        extent = (spatial_shape(op, weight) - 1) * list(dilations) + 1
    return (spatial_shape(op, y) - 1) * list(strides) + extent


def fit(
    op: Builder, x: ir.Value, like: ir.Value, window: Window, y: ir.Value, weight: ir.Value | None
) -> tuple[ir.Value, Window]:
    """x, of the shape of `like`, padded at run time to what the windows of y read, and the window that reads it."""
    after = reach(op, y, window.strides, window.dilations, window.kernel, weight) - window.start
    # Pad cuts where a number is negative: positions at the end that no window reads.
    after = after - spatial_shape(op, like)
    none = (0,) * len(window.axes)
    padded = op.Pad(x, op.Concat([0, 0], window.start, [0, 0], after, axis=0))
    return padded, replace(window, before=none, after=none, start=None)


def slide_back(
    op: Builder, dy: ir.Value, w: ir.Value, x: ir.Value, window: Window, y: ir.Value, group: int
) -> ir.Value:
    """The adjoint of sliding w over x: each dy, times w, added to the positions that its window reads, like x."""
    strides, dilations = window.strides, window.dilations
    # Positions that no window reads are fewer than the stride: so much room, and the cut at the end, fit any size.
    room = [stride - 1 for stride in strides]
    if window.start is not None:
        full = op.ConvTranspose(dy, w, strides=strides, dilations=dilations, group=group, output_padding=room)
        end = window.start + spatial_shape(op, x)
        if not window.gaps:
            return op.Slice(full, window.start, end, window.axes)
        # Pad cuts where a number is negative.
        return op.Pad(full, op.Concat([0, 0], -window.start, [0, 0], end - spatial_shape(op, full), axis=0))
    cut, end, unread = [], [], []
    for index, beyond in enumerate(window.beyond(spatial(x, len(strides)), spatial(y, len(strides)))):
        unread.append(0)
        if isinstance(beyond, int):
            end.append(max(beyond, 0))
            room[index] = min(max(-beyond, 0), strides[index] - 1)
            unread[index] = max(-beyond, 0) - room[index]
        elif window.after is not None:
            end.append(window.after[index])
            cut += [index] * (strides[index] > 1)
        else:
            end.append(0)
            cut.append(index)
    dx = op.ConvTranspose(
        dy,
        w,
        strides=strides,
        dilations=dilations,
        pads=[*(max(before, 0) for before in window.before), *end],
        group=group,
        output_padding=room if any(room) else None,
    )
    late = [max(-before, 0) for before in window.before]
    if any(late + unread):
        dx = op.Pad(dx, [0, 0, *late, 0, 0, *unread])
    if not cut:
        return dx
    ends = op.Gather(op.shape(x), np.array(cut, np.int64) + 2, axis=0)
    return op.Slice(dx, [0] * len(cut), ends, [index + 2 for index in cut])

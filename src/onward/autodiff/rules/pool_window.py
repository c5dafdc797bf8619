"""The windows of pooling as onnxruntime's kernels slide them, which differ from those of convolution.

The standard does not say what a window larger than the image reads, nor how auto_pad SAME goes with dilation or with
strides beyond the kernel; gradients are those of what onnxruntime computes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onward.autodiff.rules.window import Window, spatial, spatial_shape, window_of
from onward.graph.builder import Builder
from onward.graph.kernel_sizes import pooling_padding
from onward.graph.nodes import attribute
from onward.graph.shapes import Dim


def pooling_window(op: Builder, node: ir.Node) -> Window:
    """The window of a pooling node."""
    kernel = attribute(node, "kernel_shape", ())
    return _same_window(op, node, kernel) if _pads_itself(node) else window_of(op, node, kernel)


def _pads_itself(node: ir.Node) -> bool:
    return attribute(node, "auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")


def cuts_the_image(node: ir.Node, window: Window) -> bool:
    """Whether the padding of a node may be negative, and its dilated windows reach what that cuts off."""
    rows = zip(window.kernel, window.strides, window.dilations, strict=True)
    return _pads_itself(node) and any(stride > size and dilation > 1 for size, stride, dilation in rows)


def _same_window(op: Builder, node: ir.Node, kernel: tuple[int, ...]) -> Window:
    n, upper = len(kernel), attribute(node, "auto_pad", "NOTSET") == "SAME_UPPER"
    strides, dilations = attribute(node, "strides", (1,) * n), attribute(node, "dilations", (1,) * n)
    rows = list(zip(spatial(node.inputs[0], n), kernel, strides, strict=True))
    if all(isinstance(size, int) or stride == 1 for size, _, stride in rows):
        # With stride 1 there is as much padding for any size.
        pads = [pooling_padding(size if isinstance(size, int) else 1, k, s, upper=upper) for size, k, s in rows]
        before, after = tuple(first for first, _ in pads), tuple(last for _, last in pads)
        return Window(kernel, strides, dilations, before, None if attribute(node, "ceil_mode", 0) else after)
    sizes = spatial_shape(op, node.inputs[0])
    # Division rounds towards zero, also where the padding is negative.
    total = _padded(sizes, kernel, strides) - sizes
    return Window(kernel, strides, dilations, (0,) * n, None, (total if upper else total + 1) / 2)


def _padded(sizes: ir.Value, kernel: Sequence[int], strides: Sequence[int]) -> ir.Value:
    """Of axes and the padding around them, int64 `[n]` or `[1]`."""
    steps = np.array(strides, np.int64)
    return ((sizes + (steps - 1)) / steps - 1) * steps + np.array(kernel, np.int64)


def may_be_empty(window: Window, counts: Sequence[Dim]) -> list[int]:
    """The spatial axes, by number, along which no window may fit at run time; there is an element at least."""
    ends = (0,) * len(counts) if window.after is None else window.after
    rows = zip(counts, window.extents, window.strides, window.before, ends, strict=True)
    return [
        i
        for i, (count, extent, stride, before, after) in enumerate(rows)
        if not isinstance(count, int) and isinstance(extent, int) and extent - 1 - before - after >= stride
    ]


def begins_behind(node: ir.Node, window: Window) -> bool:
    """Whether rounding up the number of windows may add one that begins in the padding behind the image."""
    if not attribute(node, "ceil_mode", 0):
        return False
    n = len(window.axes)
    pads = (0,) * 2 * n if attribute(node, "auto_pad", "NOTSET") == "VALID" else attribute(node, "pads", (0,) * 2 * n)
    rows = list(zip(spatial(node.inputs[0], n), window.extents, window.strides, pads[:n], pads[n:], strict=True))
    if _pads_itself(node):
        return any(stride > 1 for _, _, stride, _, _ in rows)
    return any(
        not isinstance(extent, int) or _last_start(size, extent, stride, before, after) >= before + _counted(size)
        for size, extent, stride, before, after in rows
    )


def _counted(size: Dim) -> int:
    return size if isinstance(size, int) else 0


def _last_start(size: Dim, extent: int, stride: int, before: int, after: int) -> int:
    """Where the last window begins, from where the padding does; the furthest, if the size is not known."""
    room = _counted(size) + before + after - extent
    return -(-room // stride) * stride if isinstance(size, int) else room + stride - 1


def always_full(window: Window) -> bool:
    """Whether no window reaches beyond the padding, whatever the size: it neither rounds up nor is too large."""
    ends = window.after if window.start is None else None
    if ends is None:
        return False
    rows = zip(window.extents, window.strides, window.before, ends, strict=True)
    # One that is too large by less than a stride is there all the same.
    return all(stride == 1 or extent <= before + after + 1 for extent, stride, before, after in rows)


def may_miss(window: Window, sizes: Sequence[Dim]) -> bool:
    """Whether the places of a window can lie on both sides of an image and none of them in it."""
    padded = [True] * len(sizes) if window.start is not None else [before > 0 for before in window.before]
    rows = zip(sizes, window.dilations, padded, strict=True)
    return any(
        pads and not (isinstance(size, int) and size >= dilation > 0) for size, dilation, pads in rows if dilation > 1
    )


def counts(op: Builder, node: ir.Node, window: Window, *, padding: bool) -> ir.Value | np.ndarray:
    """How many places of each window lie in the data (or in the padding around it); int64 that broadcasts to y."""
    n = len(window.axes)
    known, found = np.ones([1] * n, np.int64), []
    for i in range(n):
        count = _counts_along(op, node, window, i, padding=padding)
        shape = [-1 if j == i else 1 for j in range(n)]
        if isinstance(count, ir.Value):
            found.append(op.Reshape(count, shape))
        else:
            known = known * count.reshape(shape)
    return functools.reduce(lambda total, count: count * total, found, known)


def _counts_along(op: Builder, node: ir.Node, window: Window, i: int, *, padding: bool) -> ir.Value | np.ndarray:
    """Places are counted from where the padding begins; it ends before what rounding up the number of windows adds."""
    x, y, stride = node.inputs[0], node.outputs[0], window.strides[i]
    places = np.arange(window.kernel[i]) * window.dilations[i]
    size, number = (spatial(value, len(window.axes))[i] for value in (x, y))
    if window.start is None and isinstance(size, int) and isinstance(number, int):
        read = np.arange(number)[:, None] * stride + places
        inside = read < size + sum(_pads(node, window, i, size))
        if not padding:
            inside &= (read >= window.before[i]) & (read < window.before[i] + size)
        return inside.sum(axis=1)
    starts = op.Range(0, op.Squeeze(op.dim(y, i + 2), [0]), 1) * stride
    read, length = op.Unsqueeze(starts, [1]) + places, op.dim(x, i + 2)
    if _pads_itself(node):
        end = _padded(length, window.kernel[i : i + 1], [stride])
    else:
        end = length + sum(_pads(node, window, i, 0))
    inside = op.Less(read, end)
    if not padding:
        before = window.before[i] if window.start is None else op.Gather(window.start, [i], axis=0)
        inside = op.And(inside, op.And(op.Not(op.Less(read, before)), op.Less(read, length + before)))
    return op.ReduceSum(op.cast(inside, ir.DataType.INT64), [1], keepdims=0)


def _pads(node: ir.Node, window: Window, i: int, size: int) -> tuple[int, int]:
    n, how = len(window.axes), attribute(node, "auto_pad", "NOTSET")
    if _pads_itself(node):
        return pooling_padding(size, window.kernel[i], window.strides[i], upper=how == "SAME_UPPER")
    pads = attribute(node, "pads", (0,) * 2 * n)
    return (0, 0) if how == "VALID" else (pads[i], pads[n + i])

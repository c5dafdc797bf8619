"""Slice and Pad, which are each other's transposes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.autodiff.registry import vjp
from onward.autodiff.rules.placement import Extent, embed, extent, joined, least, most, positions, put, put_flat
from onward.graph.builder import Builder
from onward.graph.nodes import attribute, input_at, integers
from onward.graph.shapes import rank

Row = list[ir.Value | None]

_END = np.iinfo(np.int64).max


@vjp("Slice")
def slice_(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """dy between zeros: a Pad, after zeros were put between its elements where the step is not 1."""
    x, y = node.inputs[0], node.outputs[0]
    starts, axes, steps = integers(node, 1, "starts"), integers(node, 3, "axes"), integers(node, 4, "steps")
    count = extent(op, starts, 0) if isinstance(starts, ir.Value) else len(starts or ())
    if isinstance(axes, ir.Value) or isinstance(steps, ir.Value) or isinstance(count, ir.Value):
        places = op.Slice(positions(op, x), *node.inputs[1:])
        return [put_flat(op, x, places, dy, distinct=True)]
    axes = tuple(axis % rank(x) for axis in (range(count) if axes is None else axes))
    step_of = dict(zip(axes, steps or (1,) * len(axes), strict=True))
    spans: dict[int, tuple[Extent, Extent]] = {}
    for index, axis in enumerate(axes):
        if _is_whole(node, index):
            continue
        step, size = step_of[axis], extent(op, y, axis)
        if isinstance(starts, ir.Value):
            start: Extent = op.cast(op.Gather(starts, [index]), ir.DataType.INT64)
        else:
            start = (starts or ())[index]
        first = _first(op, start, extent(op, x, axis), step)
        spans[axis] = (first if step > 0 else _last(op, first, size, step), size * abs(step))
    backwards = [axis for axis in axes if step_of[axis] < 0]
    if backwards:
        dy = _reversed(op, dy, backwards)
    return [embed(op, _spread(op, dy, y, {axis: abs(step) for axis, step in step_of.items()}), x, spans)]


def takes_all(node: ir.Node) -> bool:
    """Whether a Slice says of every axis that it names that it takes all of it."""
    starts = integers(node, 1, "starts")
    return isinstance(starts, tuple) and all(_is_whole(node, index) for index in range(len(starts)))


def _is_whole(node: ir.Node, index: int) -> bool:
    """Whether a Slice says of an axis that it takes all of it, as programs do for the axes that they do not cut."""
    starts, ends, steps = (integers(node, place, name) for place, name in ((1, "starts"), (2, "ends"), (4, "steps")))
    if not isinstance(starts, tuple) or not isinstance(ends, tuple) or isinstance(steps, ir.Value):
        return False
    return starts[index] == 0 and ends[index] == _END and (steps is None or steps[index] == 1)


def _first(op: Builder, start: Extent, size: Extent, step: int) -> Extent:
    """Where a slice really starts: negative starts count from the end, then the standard clamps them."""
    if isinstance(start, ir.Value):
        start = op.Where(op.Less(start, 0), start + size, start)
    elif start < 0:
        start = most(op, size + start, 0)
    last = size if step > 0 else size - 1
    return start if isinstance(start, int) and start == 0 else least(op, most(op, start, 0), last)


def _last(op: Builder, first: Extent, size: Extent, step: int) -> Extent:
    """Where a slice that goes backwards ends: the lowest of its positions, 0 where it has none."""
    if isinstance(size, int):
        return first + (size - 1) * step if size else 0
    return op.Where(op.Equal(size, 0), 0, first + (size - 1) * step)


def _reversed(op: Builder, x: ir.Value, axes: list[int]) -> ir.Value:
    count = len(axes)
    return op.Slice(x, [-1] * count, [-_END] * count, axes, [-1] * count)


def _spread(op: Builder, dy: ir.Value, y: ir.Value, steps: dict[int, int]) -> ir.Value:
    """dy, of the shape of y, with step - 1 zeros after each element of an axis."""
    strided = sorted(axis for axis, step in steps.items() if step > 1)
    if not strided:
        return dy
    inner = [axis + 1 + index for index, axis in enumerate(strided)]
    after = [0] * (rank(y) + len(strided))
    for axis, position in zip(strided, inner, strict=True):
        after[position] = steps[axis] - 1
    spread = op.Pad(op.Unsqueeze(dy, inner), [0] * len(after) + after)
    shape = joined(op, [extent(op, y, axis) * steps.get(axis, 1) for axis in range(rank(y))])
    return op.reshape(spread, shape, exact=True)


@vjp("Pad")
def pad(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """Padding with a constant is undone by padding as much less; the other modes repeat elements of x."""
    x, mode = node.inputs[0], attribute(node, "mode", "constant")
    widths = _widths(node)
    if mode != "constant":
        if widths is None or any(min(width) < 0 for width in widths.values()):
            places = op.emit("Pad", positions(op, x), *node.inputs[1:], mode=mode)
            return [put_flat(op, x, places, dy, distinct=False)]
        for axis, width in widths.items():
            dy = _fold(op, dy, x, axis, width, mode)
        return [dy]
    dx = _unpad(op, dy, rank(x), widths) if widths else dy
    if widths is None:
        dx = op.Pad(dy, op.Neg(node.inputs[1]), *_axes_input(node))
    value = input_at(node, 2)
    if value is None:
        return [dx]
    # Zeros padded with ones tell what is padding.
    padding = op.Pad(op.zeros_like(x), node.inputs[1], 1, *_axes_input(node)[1:])
    return [dx, None, op.reshape_like(op.ReduceSum(dy * padding, keepdims=0), value)]


def _axes_input(node: ir.Node) -> list[ir.Value | None]:
    """What follows the pads in a Pad without a value."""
    axes = input_at(node, 3)
    return [] if axes is None else [None, axes]


def _widths(node: ir.Node) -> dict[int, tuple[int, int]] | None:
    """axis -> (before, after) where they are not both 0; None when only known at run time."""
    pads, axes = integers(node, 1, "pads"), integers(node, 3, "axes")
    if pads is None or isinstance(pads, ir.Value) or isinstance(axes, ir.Value):
        return None
    count = len(pads) // 2
    padded = range(count) if axes is None else [axis % rank(node.inputs[0]) for axis in axes]
    widths = zip(pads[:count], pads[count:], strict=True)
    return {axis: width for axis, width in zip(padded, widths, strict=True) if any(width)}


def _unpad(op: Builder, dy: ir.Value, ndim: int, widths: dict[int, tuple[int, int]]) -> ir.Value:
    if all(min(width) >= 0 for width in widths.values()):
        ends = [-after if after else _END for _, after in widths.values()]
        return op.Slice(dy, [before for before, _ in widths.values()], ends, list(widths))
    pads = np.zeros((2, ndim), np.int64)
    for axis, width in widths.items():
        pads[:, axis] = width
    return op.Pad(dy, -pads.reshape(-1))


def _fold(op: Builder, dy: ir.Value, x: ir.Value, axis: int, width: tuple[int, int], mode: str) -> ir.Value:
    """The inner part of dy along one axis, plus each element of the padding where it was copied from."""
    inner = _unpad(op, dy, rank(x), {axis: width})
    border = _border(op, dy, axis, width)
    size = extent(op, x, axis)
    if isinstance(size, int):
        sources = np.pad(np.arange(size), width, mode=mode)  # type: ignore[call-overload]
        places = op.constant(np.delete(sources, np.s_[width[0] : width[0] + size]), ir.DataType.INT64)
    else:
        # Range takes scalars.
        numbers = op.Range(0, op.Reshape(size, np.array([], np.int64)), 1)
        places = _border(op, op.Pad(numbers, list(width), mode=mode), 0, width)
    index = op.Reshape(places, [-1 if other == axis else 1 for other in range(rank(x))])
    return put(op, inner, op.Expand(index, op.Shape(border)), border, axis)


def _border(op: Builder, padded: ir.Value, axis: int, width: tuple[int, int]) -> ir.Value:
    """What was padded along an axis, both sides next to each other."""
    before, after = width
    sides = []
    if before:
        sides.append(op.Slice(padded, [0], [before], [axis]))
    if after:
        sides.append(op.Slice(padded, [-after], [_END], [axis]))
    return sides[0] if len(sides) == 1 else op.Concat(*sides, axis=axis)

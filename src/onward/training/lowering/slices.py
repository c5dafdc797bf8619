"""Gradients of slices."""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.nodes import attribute, constant_of, input_at, integers, standard_producer
from onward.graph.shapes import dims


class _Tile(NamedTuple):
    """A value between zeros along one axis."""

    value: ir.Value
    axis: int
    before: int
    after: int


def tiles(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """A sum of padded tensors that do not overlap is their concatenation.

    The gradients of all parts of a tensor add up to such a sum: for example, of the product for queries, keys, values.
    """
    tiled = [part for part in map(_tile, node.inputs) if part is not None]
    sizes = dims(node.outputs[0])
    if sizes is None or len(tiled) < len(node.inputs) or len({part.axis for part in tiled}) > 1:
        return None
    axis = tiled[0].axis
    total = sizes[axis]
    if not isinstance(total, int):
        return None
    tiled.sort(key=lambda part: part.before)
    position = 0
    for part in tiled:
        if part.before != position:
            return None
        position = total - part.after
    if position != total:
        return None
    return [op.Concat(*(part.value for part in tiled), axis=axis)]


def _tile(value: ir.Value | None) -> _Tile | None:
    """The operand of a Pad that adds zeros along one axis."""
    pad = standard_producer(value)
    if pad is None or pad.op_type != "Pad" or attribute(pad, "mode", "constant") != "constant":
        return None
    x, pads, fill = pad.inputs[0], integers(pad, 1, "pads"), input_at(pad, 2)
    if x is None or not isinstance(pads, tuple) or min(pads) < 0 or input_at(pad, 3) is not None:
        return None
    number = constant_of(fill)
    if fill is not None and (number is None or number.item() != 0):
        return None
    rank = len(pads) // 2
    padded = [axis for axis in range(rank) if pads[axis] or pads[axis + rank]]
    return _Tile(x, padded[0], pads[padded[0]], pads[padded[0] + rank]) if len(padded) == 1 else None

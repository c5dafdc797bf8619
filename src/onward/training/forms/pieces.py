"""Tensors made of the pieces of another one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.nodes import attribute, integers, standard_producer
from onward.graph.shapes import static_shape


class _Piece(NamedTuple):
    """Places along one axis of a tensor."""

    source: ir.Value
    axis: int
    places: tuple[int, ...]


def rearranged(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """A Concat of all slices of one tensor, in another order: one Gather, and one for the gradient.

    torch and ONNX have the gates of recurrent layers in different orders, so that every weight is taken apart and put
    together again at each step, and its gradient too.
    """
    pieces = [piece for value in node.inputs if (piece := _piece(value)) is not None]
    if len(pieces) < len(node.inputs) or len({(piece.source, piece.axis) for piece in pieces}) > 1:
        return None
    (source, axis, _), size = pieces[0], sum(len(piece.places) for piece in pieces)
    shape, places = static_shape(source) or (), [place for piece in pieces for place in piece.places]
    if axis != attribute(node, "axis", 0) % len(shape) or shape[axis] != size or sorted(places) != list(range(size)):
        return None
    return [op.Gather(source, np.array(places, np.int64), axis=axis)]


def _piece(value: ir.Value | None) -> _Piece | None:
    """What a value is a slice of, if it is one along a single axis."""
    node = standard_producer(value)
    source = node.inputs[0] if node is not None and node.op_type == "Slice" else None
    shape = None if source is None else static_shape(source)
    if node is None or source is None or shape is None:
        return None
    starts, ends, axes, steps = (
        integers(node, index, name) for index, name in enumerate(("starts", "ends", "axes", "steps"), start=1)
    )
    if not isinstance(starts, tuple) or not isinstance(ends, tuple) or isinstance(axes, ir.Value):
        return None
    if len(starts) != 1 or steps not in (None, (1,)):
        return None
    axis = (axes or (0,))[0] % len(shape)
    return _Piece(source, axis, tuple(range(shape[axis])[starts[0] : ends[0]]))

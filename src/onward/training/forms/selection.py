"""Elements along an axis."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.nodes import attribute, constant_of, integers
from onward.graph.shapes import dims


@dataclass
class _View:
    """A tensor that has the axes of another in another order: for each of its own the other's, None if it is new."""

    source: ir.Value
    axes: list[int | None]
    moved: bool = False


def select_before_moving(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """Take one element along an axis of x itself, not of x with its axes in another order.

    torch's attention makes one product for queries, keys and values, moves the axis of these three to the front, and
    takes one after the other: a pass over the whole product, and another one over its gradient, for nothing.
    """
    x, indices = node.inputs
    index = constant_of(indices)
    if x is None or index is None or index.ndim or dims(x) is None:
        return None
    view = _view(x)
    if not view.moved:
        return None
    axis = attribute(node, "axis", 0) % len(view.axes)
    chosen = view.axes[axis]
    rest = view.axes[:axis] + view.axes[axis + 1 :]
    kept = [a for a in rest if a is not None]
    if chosen is None or kept != sorted(kept):
        return None
    result = op.Gather(view.source, indices, axis=chosen)
    dropped = [a for a in range(len(dims(view.source) or ())) if a != chosen and a not in kept]
    if dropped:
        result = op.Squeeze(result, [a - (a > chosen) for a in dropped])
    added = [position for position, a in enumerate(rest) if a is None]
    return [op.Unsqueeze(result, added) if added else result]


def _view(x: ir.Value) -> _View:
    """Where the axes of x come from, through all that only moves, adds or removes axes."""
    node = x.producer()
    source = None if node is None or node.domain or not node.inputs else node.inputs[0]
    known = None if source is None else dims(source)
    own = list(range(len(dims(x) or ())))
    here = _View(x, [*own])
    if node is None or source is None or known is None:
        return here
    if node.op_type == "Identity":  # a copy in the program
        return _view(source)
    if node.op_type == "Transpose":
        order: list[int | None] = list(attribute(node, "perm", tuple(reversed(range(len(known))))))
        moved = order != own
    elif node.op_type in ("Squeeze", "Unsqueeze"):
        listed, moved = integers(node, 1, "axes"), False
        if not isinstance(listed, tuple):
            return here
        if node.op_type == "Squeeze":
            order = [axis for axis in range(len(known)) if axis not in {a % len(known) for a in listed}]
        else:
            old = iter(range(len(known)))
            order = [None if axis in {a % len(own) for a in listed} else next(old) for axis in own]
    else:
        return here
    below = _view(source)
    return _View(below.source, [None if a is None else below.axes[a] for a in order], moved or below.moved)

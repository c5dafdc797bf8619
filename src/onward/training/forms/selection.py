"""Elements along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onward.autodiff.rules.padding import takes_all
from onward.graph.builder import Builder
from onward.graph.nodes import attribute, constant_of, input_at, integers
from onward.graph.shapes import Dim, dims


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

    What a recurrent layer gives for its last step is an output of its own, whose gradient has no zeros for the others.
    """
    x, indices = node.inputs
    index = constant_of(indices)
    if x is None or index is None or index.ndim or dims(x) is None:
        return None
    view = _view(x)
    axis = attribute(node, "axis", 0) % len(view.axes)
    chosen = view.axes[axis]
    rest = view.axes[:axis] + view.axes[axis + 1 :]
    kept = [a for a in rest if a is not None]
    if chosen is None or kept != sorted(kept):
        return None
    if _is_last_state(view.source, chosen, int(index)):
        layer = view.source.producer()
        assert layer is not None
        result = op.forward_output(layer, 1)
    elif view.moved:
        result = op.Gather(view.source, indices, axis=chosen)
    else:
        return None
    dropped = [a for a in range(len(dims(view.source) or ())) if a != chosen and a not in kept]
    if dropped:
        result = op.Squeeze(result, [a - (a > chosen) for a in dropped])
    added = [position for position, a in enumerate(rest) if a is None]
    return [op.Unsqueeze(result, added) if added else result]


def _is_last_state(y: ir.Value, axis: int, index: int) -> bool:
    """Whether an element along an axis of all states of a recurrent layer is the last one."""
    layer, known = y.producer(), dims(y)
    if layer is None or layer.domain != "" or layer.op_type not in ("RNN", "GRU", "LSTM") or y is not layer.outputs[0]:
        return False
    # Beyond its length a sequence has zeros there; and of two directions one ends at the other end.
    direction = attribute(layer, "direction", "forward")
    if axis or input_at(layer, 4) is not None or attribute(layer, "layout", 0) or direction == "bidirectional":
        return False
    last, steps = -1 if direction == "forward" else 0, (known or (None,))[0]
    # Without a single step there is nothing to take, but a last state.
    return isinstance(steps, int) and -steps <= index < steps and index % steps == last % steps


def _view(x: ir.Value) -> _View:
    """Where the axes of x come from, through all that only moves, adds or removes axes."""
    node = x.producer()
    source = None if node is None or node.domain or not node.inputs else node.inputs[0]
    known = None if source is None else dims(source)
    own = list(range(len(dims(x) or ())))
    here = _View(x, [*own])
    if node is None or source is None or known is None:
        return here
    if node.op_type == "Identity" or (node.op_type == "Slice" and takes_all(node)):  # a copy in the program
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
    elif node.op_type == "Reshape":
        order, moved = _same_axes(known, dims(x) or ()), False
        if not order:
            return here
    else:
        return here
    below = _view(source)
    return _View(below.source, [None if a is None else below.axes[a] for a in order], moved or below.moved)


def _same_axes(before: Sequence[Dim], after: Sequence[Dim]) -> list[int | None]:
    """The axis that each one after a Reshape was before it, if that only adds and removes axes of size 1; else none."""
    if sum(not isinstance(size, int) for size in after) > 1:
        return []  # equal names need not be equal sizes; a single one follows from the others
    order: list[int | None] = []
    rest = list(enumerate(before))
    for size in after:
        while rest and rest[0][1] == 1 and size != 1:
            rest.pop(0)
        if rest and size is not None and rest[0][1] == size:
            order.append(rest.pop(0)[0])
        elif size == 1:
            order.append(None)
        else:
            return []
    return order if all(size == 1 for _, size in rest) else []

"""Inputs that are nothing but zeros, and mean the same if they are absent."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.nodes import attribute, constant_of, input_at
from onward.graph.shapes import dims

_SAME_VALUES = frozenset(("Cast", "CastLike", "Expand", "Identity", "Reshape", "Slice"))


def drop_zeros(graph: ir.Graph) -> None:
    """Leave out what torch's exporters compute where a program gives nothing, in place.

    For convolutions without a bias they write `Expand(CastLike(0, x), [C])`: another pass over each result, and a use
    of each x. For the first states of recurrent layers, zeros in the shape of a batch.
    """
    for node in graph:
        if node.domain != "":
            continue
        if node.op_type in ("Conv", "ConvTranspose"):
            _drop(node, 2)
        elif node.op_type in ("RNN", "GRU", "LSTM"):
            for index in (5, 6) if node.op_type == "LSTM" else (5,):
                if _is_state(input_at(node, index), node):
                    _drop(node, index)


def _drop(node: ir.Node, index: int) -> None:
    value = input_at(node, index)
    if value is not None and _is_zero(value):
        node.replace_input_with(index, None)


def _is_state(value: ir.Value | None, node: ir.Node) -> bool:
    """Whether a value is known to have the shape of a state: a wrong one must stay, and be refused."""
    x, weight = node.inputs[0], node.inputs[2]
    if value is None or x is None or weight is None or attribute(node, "layout", 0) != 0:
        return False
    (_, batch, _), (directions, _, hidden) = dims(x) or (None,) * 3, dims(weight) or (None,) * 3
    state = (directions, batch, hidden)
    return None not in state and dims(value) == state


def _is_zero(value: ir.Value) -> bool:
    """Whether a value is known to be zeros, whatever its shape, and to stay so."""
    node = value.producer()
    if node is None:
        constant = constant_of(value)
        return constant is not None and not constant.any()
    if node.domain != "" or node.inputs[0] is None:
        return False
    if node.op_type == "ConstantOfShape":
        fill = attribute(node, "value", None)
        return fill is None or not fill.numpy().any()
    return node.op_type in _SAME_VALUES and _is_zero(node.inputs[0])

"""Biases that are nothing but zeros."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onward.graph.nodes import attribute, constant_of, input_at

_SAME_VALUES = frozenset(("Cast", "CastLike", "Expand", "Identity", "Reshape"))


def drop_zero_biases(graph: ir.Graph, carrying: Collection[ir.Value]) -> None:
    """Leave out the biases that torch's exporter computes for convolutions which have none, in place.

    It writes `Expand(CastLike(0, x), [C])`: another pass over each result, and a use of each x.
    """
    for node in graph:
        if node.domain == "" and node.op_type in ("Conv", "ConvTranspose"):
            bias = input_at(node, 2)
            if bias is not None and _is_zero(bias, carrying):
                node.replace_input_with(2, None)


def _is_zero(value: ir.Value, carrying: Collection[ir.Value]) -> bool:
    """Whether a value is known to be zeros, whatever its shape, and to stay so when parameters change."""
    node = value.producer()
    if node is None:
        constant = constant_of(value)
        return constant is not None and value not in carrying and not constant.any()
    if node.domain != "" or node.inputs[0] is None:
        return False
    if node.op_type == "ConstantOfShape":
        fill = attribute(node, "value", None)
        return fill is None or not fill.numpy().any()
    return node.op_type in _SAME_VALUES and _is_zero(node.inputs[0], carrying)

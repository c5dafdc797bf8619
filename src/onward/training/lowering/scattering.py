"""Gradients of what is taken from a table."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.nodes import attribute, input_at, standard_producer
from onward.graph.shapes import dims, same_dims


def scattered_term(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """x + scatter(zeros) as scatter(x): the gradient of an embedding that the scores are computed with, too.

    Neither the zeros nor the sum take a pass over the whole table then.
    """
    if len(node.inputs) != 2:
        return None
    for term, other in (node.inputs, reversed(node.inputs)):
        scatter = standard_producer(term)
        if term is None or other is None or scatter is None or scatter.op_type != "ScatterElements":
            continue
        shared = len(term.uses()) > 1 or term.is_graph_output()
        adds = attribute(scatter, "reduction", "none") == "add" and is_zero(input_at(scatter, 0))
        if adds and not shared and same_dims(dims(term), dims(other)):
            options = {name: attr.value for name, attr in scatter.attributes.items()}
            return [op.ScatterElements(other, *scatter.inputs[1:], **options)]
    return None


def is_zero(value: ir.Value | None) -> bool:
    """Whether it is written as nothing but zeros."""
    filled = standard_producer(value)
    if filled is None or filled.op_type != "ConstantOfShape":
        return False
    tensor = filled.attributes.get("value")
    return tensor is None or not tensor.as_tensor().numpy().any()

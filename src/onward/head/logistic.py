"""The logistic function where a file spells it out: 1 / (1 + exp(-s)), as skl2onnx writes it for SGDClassifier.

Its value is right where exp(-s) is infinite, but the slope of that expression is 0 times infinity there. A Sigmoid has
both.
"""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.nodes import constant_of, take_over


def name_logistic(model: ir.Model) -> None:
    """Put a Sigmoid wherever the graph computes one in steps; values keep their names."""
    for node in list(model.graph):
        score = _score(node)
        if score is not None:
            sigmoid = ir.node("Sigmoid", [score], name=node.name)
            model.graph.insert_before(node, sigmoid)
            take_over(node.outputs[0], sigmoid.outputs[0])
            model.graph.remove(node, safe=True)


def _score(node: ir.Node) -> ir.Value | None:
    """The s of a node that computes 1 / (1 + exp(-s))."""
    if node.domain == "" and node.op_type == "Reciprocal":
        divisor = node.inputs[0]
    else:
        divisor = _beside(node, "Div", 1.0, first=True)
    power = _beside(divisor, "Add", 1.0)
    exponential = _producer(power, "Exp")
    negative = None if exponential is None else exponential.inputs[0]
    negation = _producer(negative, "Neg")
    return negation.inputs[0] if negation is not None else _beside(negative, "Mul", -1.0)


def _producer(value: ir.Value | None, operator: str) -> ir.Node | None:
    node = None if value is None else value.producer()
    return node if node is not None and node.domain == "" and node.op_type == operator else None


def _beside(made: ir.Node | ir.Value | None, operator: str, number: float, *, first: bool = False) -> ir.Value | None:
    """What an operator combines with a single number; with `first`, where the number comes first."""
    node = made if isinstance(made, ir.Node) else _producer(made, operator)
    if node is None or node.domain != "" or node.op_type != operator:
        return None
    for constant, other in [tuple(node.inputs), *([] if first else [tuple(node.inputs)[::-1]])]:
        array = constant_of(constant)
        if array is not None and array.size == 1 and array.ndim <= 1 and array.item() == number:
            return other
    return None

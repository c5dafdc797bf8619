"""Values that are repeated before something would repeat them anyway."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.shapes import dims, same_dims

BROADCASTING = ("Add", "Div", "Mul", "Sub", "Sum", "Where")


def needless_expansions(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """Let an operator broadcast by itself, where another operand has the shape that an Expand makes."""
    operands = list(node.inputs)
    for index, operand in enumerate(node.inputs):
        expand = None if operand is None else operand.producer()
        if operand is None or expand is None or (expand.op_type, expand.domain) != ("Expand", ""):
            continue
        others = [other for other in operands if other is not None and other is not operand]
        if any(same_dims(dims(other), dims(operand)) for other in others):
            operands[index] = expand.inputs[0]
    return None if operands == list(node.inputs) else [op.emit(node.op_type, *operands)]

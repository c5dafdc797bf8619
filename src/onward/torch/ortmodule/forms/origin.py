"""Where a value comes from: the operators that torch's exporter has written an operation by."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.provenance.record import OPERATION


def made_by(value: ir.Value | None, op_type: str, operation: str = "") -> ir.Node | None:
    """The node that a value is from, if it is of this kind."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != op_type or operation not in node.metadata_props.get(OPERATION, ""):
        return None
    return node


def operands_of_quotient(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """What is divided by what in an operation that ends with this node, if there is a single division."""
    record, found, todo = node.metadata_props.get(OPERATION), set[ir.Node](), [node]
    if any(user.metadata_props.get(OPERATION) == record for user, _ in node.outputs[0].uses()):
        return None
    while todo:
        current = todo.pop()
        if current.op_type == "Div":
            found.add(current)
        for value in current.inputs:
            before = None if value is None else value.producer()
            if before is not None and before.metadata_props.get(OPERATION) == record:
                todo.append(before)
    if len(found) != 1:
        return None
    x, y = found.pop().inputs
    assert x is not None
    assert y is not None
    return x, y

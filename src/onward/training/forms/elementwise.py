"""Operators that take elements one by one, so that it is all the same to them in which order these lie."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.shapes import dims, same_dims

# Their other inputs are numbers.
_UNARY = frozenset(
    "Clip Elu Erf Gelu HardSigmoid HardSwish LeakyRelu Mish Relu Selu Sigmoid Softplus Softsign Tanh".split()
)
_BINARY = frozenset("Add Div Mul Sub".split())


def operands(node: ir.Node) -> list[ir.Value] | None:
    """The inputs of an elementwise node that have the shape of its result; its others are numbers. None of others."""
    given = [value for value in node.inputs if value is not None]
    if node.domain != "" or not given:
        return None
    if node.op_type in _UNARY:
        found = given[:1]
    elif node.op_type in _BINARY:
        found = [value for value in given if not _is_number(value)]
    else:
        return None
    if not found or not all(same_dims(dims(found[0]), dims(value)) for value in found[1:]):
        return None
    return found if all(value in found or _is_number(value) for value in given) else None


def repeated(op: Builder, node: ir.Node, values: dict[ir.Value, ir.Value]) -> ir.Value:
    """The result of an elementwise node for other values of its operands."""
    given = [values.get(value, value) if value is not None else None for value in node.inputs]
    return op.emit(node.op_type, *given, **{name: attr.value for name, attr in node.attributes.items()})


def counts_elements(node: ir.Node) -> bool:
    """Whether a node asks for the number of elements of a tensor, and for nothing else."""
    return node.domain == "" and node.op_type == "Size"


def _is_number(value: ir.Value) -> bool:
    return dims(value) == ()

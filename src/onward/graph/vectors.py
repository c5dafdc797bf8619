"""Products with vectors, in the form that onnxruntime computes rightly."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.nodes import attribute


def turn_products(model: ir.Model) -> bool:
    """Write A^T v as v A, in place, where v is a vector; shapes have been inferred. Whether there are such products.

    onnxruntime multiplies a transposed operand as it is, and takes the vector behind it for a row: the result has the
    right shape and wrong numbers. With the vector in front it has the right ones.
    """
    found = misread_products(model)
    for node in found:
        _turn(node)
    return bool(found)


def misread_products(model: ir.Model) -> list[ir.Node]:
    """The products A^T v that onnxruntime computes wrongly."""
    return [node for graph in model.graphs() for node in graph if _is_misread(node)]


def _is_misread(node: ir.Node) -> bool:
    if node.op_type != "MatMul" or node.domain != "":
        return False
    a, v = node.inputs
    if a is None or v is None or a.shape is None or v.shape is None or len(v.shape) != 1:
        return False
    producer = a.producer()
    return any(_transposes_last(found, len(a.shape)) for found in (producer, _behind_copies(producer)))


def _turn(node: ir.Node) -> None:
    a, v = node.inputs
    assert a is not None
    assert a.shape is not None
    producer, rank = a.producer(), len(a.shape)
    if _transposes_last(producer, rank):
        assert producer is not None
        node.replace_input_with(1, producer.inputs[0])
    else:
        node.replace_input_with(1, _transposed(a, rank, node))
    node.replace_input_with(0, v)


def _behind_copies(node: ir.Node | None) -> ir.Node | None:
    """The node before those that onnxruntime looks through: of other types, and functions, which may be copies."""
    while node is not None and (node.op_type in ("Cast", "Identity") or node.domain != ""):
        x = node.inputs[0] if node.inputs else None
        node = None if x is None else x.producer()
    return node


def _transposes_last(node: ir.Node | None, rank: int) -> bool:
    if node is None or node.op_type != "Transpose" or node.domain != "":
        return False
    order = list(range(rank))
    return rank >= 2 and list(attribute(node, "perm", order[::-1])) == [*order[:-2], rank - 1, rank - 2]


def _transposed(x: ir.Value, rank: int, place: ir.Node) -> ir.Value:
    assert x.shape is not None
    assert place.graph is not None
    order = [*range(rank - 2), rank - 1, rank - 2]
    name = f"{x.name}/transposed"
    new = ir.node("Transpose", [x], {"perm": order}, name=name)
    output = new.outputs[0]
    output.name, output.type, output.shape = name, x.type, ir.Shape([x.shape[axis] for axis in order])
    place.graph.insert_before(place, new)
    return output

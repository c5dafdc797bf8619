"""Let a graph refuse at run time what it must not take, in standard operators.

A Reshape to impossible sizes fails in every onnxruntime, whose error names the node: the name says what is wrong. A
Reshape to the sizes that a tensor has costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from onward.signature import CHECK

if TYPE_CHECKING:
    from onward.graph.builder import Builder

_IMPOSSIBLE = -2


def guarded(op: Builder, x: ir.Value, fits: ir.Value, rule: str) -> ir.Value:
    """`x`, or an error that contains `rule` unless all of `fits`, a boolean for each axis of `x`, are true."""
    own = op.Shape(x)
    result = _named(op, op.Reshape(x, op.Where(fits, own, _IMPOSSIBLE)), rule)
    result.shape = None if x.shape is None else x.shape.copy()
    return result


def reshaped(op: Builder, x: ir.Value, sizes: ir.Value, fits: ir.Value | None, rule: str) -> ir.Value:
    """`x` in a shape, or an error that contains `rule` where it has more or fewer elements."""
    return _named(op, op.Reshape(x, sizes if fits is None else op.Where(fits, sizes, _IMPOSSIBLE)), rule)


def _named(op: Builder, result: ir.Value, rule: str) -> ir.Value:
    node = result.producer()
    assert node is not None
    node.name = op.unique_name(f"{CHECK}{rule}")
    return result


def is_guard(node: ir.Node) -> bool:
    """Whether a Reshape gives its input the sizes that it has, or fails."""
    if node.op_type != "Reshape" or node.domain or len(node.inputs) < 2 or node.inputs[1] is None:
        return False
    choice = node.inputs[1].producer()
    if choice is None or choice.op_type != "Where" or choice.domain:
        return False
    shape = None if choice.inputs[1] is None else choice.inputs[1].producer()
    return shape is not None and shape.op_type == "Shape" and not shape.attributes and shape.inputs[0] is node.inputs[0]


def show_guards(graph: onnx.GraphProto) -> None:
    """Replace guards by Identity, through which inference sees, in place."""
    guards: list[onnx.NodeProto] = [node for node in graph.node if node.op_type == "Reshape" and not node.domain]
    if not guards:
        return
    producers = {output: node for node in graph.node if node.op_type in ("Shape", "Where") for output in node.output}
    for node in guards:
        choice = producers.get(node.input[1])
        if choice is None or choice.op_type != "Where":
            continue
        shape = producers.get(choice.input[1])
        if shape is not None and shape.op_type == "Shape" and not shape.attribute and shape.input[0] == node.input[0]:
            node.op_type = "Identity"
            del node.input[1:], node.attribute[:]

"""Let a graph refuse at run time what it must not take, in standard operators.

A Reshape that is impossible fails in every onnxruntime, whose error names the node: the name says what is wrong. A
Reshape to the sizes that a tensor has anyway costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from onward.signature import CHECK

if TYPE_CHECKING:
    from onward.graph.builder import Builder

_IMPOSSIBLE = -2


def guarded(op: Builder, x: ir.Value, sizes: ir.Value, rule: str, *, exact: bool = True) -> ir.Value:
    """`x`, or an error that contains `rule` where its sizes are not these.

    `exact` compares them one by one; without it, which is cheaper, the number of elements must be right.
    """
    if exact:
        own = op.Shape(x)
        sizes = op.Where(op.Equal(own, sizes), own, _IMPOSSIBLE)
    result = op.reshape(x, sizes, exact=not exact)
    node = result.producer()
    assert node is not None
    node.name = op.unique_name(f"{CHECK}{rule}")
    result.shape = None if x.shape is None else x.shape.copy()
    return result


def positive(op: Builder, sizes: ir.Value) -> ir.Value:
    """Sizes of which none is 0: 1 in its place, which a tensor without elements cannot be reshaped to."""
    if op.opset >= 12:
        return op.Max(sizes, 1)
    return op.Where(op.Greater(sizes, 0), sizes, 1)


def is_guard(node: ir.Node | None) -> bool:
    """Whether a node gives its input back, or fails."""
    return node is not None and node.op_type == "Reshape" and (node.name or "").startswith(CHECK)


def show_guards(graph: onnx.GraphProto) -> None:
    """Replace guards by Identity, through which inference sees, in place."""
    for node in graph.node:
        if node.op_type == "Reshape" and node.name.startswith(CHECK):
            node.op_type = "Identity"
            del node.input[1:], node.attribute[:]

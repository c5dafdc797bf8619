"""Operators that accumulate along an axis."""

from __future__ import annotations

import onnx_ir as ir

from onward.autodiff.registry import vjp
from onward.graph.builder import Builder
from onward.graph.nodes import attribute

Row = list[ir.Value | None]


@vjp("CumSum")
def cumsum(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """dx[i] is the sum of dy from i on: the same sum in the other direction."""
    exclusive, reverse = attribute(node, "exclusive", 0), attribute(node, "reverse", 0)
    return [op.CumSum(dy, node.inputs[1], exclusive=exclusive, reverse=1 - reverse)]

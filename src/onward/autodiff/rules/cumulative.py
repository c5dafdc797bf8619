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


@vjp("CumProd")
def cumprod(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """dx[i] is the sum of dy[k] y[k] / x[i] over the products k that contain i, up to the first zero.

    For the first zero itself that zero counts as 1; what follows it has no slope, for it is multiplied by zero.
    The second derivative follows this formula too, and is exact where no element is zero.
    """
    x, axis = node.inputs
    y = node.outputs[0]
    exclusive, reverse = attribute(node, "exclusive", 0), attribute(node, "reverse", 0)
    is_zero = op.Equal(x, 0)
    zeros = op.CumSum(op.cast(is_zero, x.dtype), axis, reverse=reverse)
    first = op.And(is_zero, op.Equal(zeros, 1))
    others = op.CumProd(op.Where(first, 1, x), axis, exclusive=exclusive, reverse=reverse)

    def following(products: ir.Value) -> ir.Value:
        return op.CumSum(dy * products, axis, exclusive=exclusive, reverse=1 - reverse)

    before = following(y) / op.Where(is_zero, 1, x)
    return [op.Where(op.Equal(zeros, 0), before, op.Where(first, following(others), 0))]

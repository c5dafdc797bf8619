"""Softmax and its logarithm."""

from __future__ import annotations

import onnx_ir as ir

from onward.autodiff.registry import vjp
from onward.graph.builder import Builder
from onward.graph.nodes import attribute
from onward.graph.shapes import rank


def normalized_axes(op: Builder, node: ir.Node) -> list[int]:
    """The axes that a softmax sums over: one of them, or up to opset 12 all from `axis` on."""
    if op.opset >= 13:
        return [attribute(node, "axis", -1)]
    ndim = rank(node.inputs[0])
    axis = attribute(node, "axis", 1)
    return list(range(axis + ndim if axis < 0 else axis, ndim))


@vjp("Softmax")
def softmax(op: Builder, node: ir.Node, dy: ir.Value) -> ir.Value:
    """dx = y (dy - sum(dy y))."""
    y, axes = _without_nan(op, node.outputs[0]), normalized_axes(op, node)
    return y * (dy - op.ReduceSum(dy * y, axes, keepdims=1)) if axes else dy * 0


def _without_nan(op: Builder, y: ir.Value) -> ir.Value:
    """A row that is masked from end to end is NaN; where a Where replaces it afterwards, its slope is 0, not NaN.

    So do the function body of Attention and the attention that torch exports; elsewhere NaN is not hidden.
    """
    return op.Where(op.IsNaN(y), 0, y) if _is_replaced(y) else y


def _is_replaced(y: ir.Value) -> bool:
    return any(
        node.op_type in ("IsNaN", "Where") or (node.op_type in ("Cast", "Identity") and _is_replaced(node.outputs[0]))
        for node, _ in y.uses()
    )


@vjp("LogSoftmax")
def log_softmax(op: Builder, node: ir.Node, dy: ir.Value) -> ir.Value:
    """dx = dy - exp(y) sum(dy)."""
    y, axes = node.outputs[0], normalized_axes(op, node)
    return dy - op.Exp(y) * op.ReduceSum(dy, axes, keepdims=1) if axes else dy * 0

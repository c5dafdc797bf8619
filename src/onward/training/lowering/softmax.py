"""Softmax in attention, and its gradient."""

from __future__ import annotations

import onnx_ir as ir

from onward.autodiff.registry import Cotangents
from onward.autodiff.rules import softmax as rules
from onward.graph.builder import Builder
from onward.graph.nodes import constant_of
from onward.graph.shapes import dims, same_dims


def softmax(op: Builder, node: ir.Node, dy: ir.Value) -> Cotangents:
    """The rule of Softmax, where a model writes zeros over rows that are NaN: from what it has then.

    Such rows are masked from end to end; torch's exporter writes this for every attention. With y for the result with
    zeros, dx = y (dy - sum(dy y)) is 0 there as it should be, as long as dy is finite, so neither Softmax's own result
    nor which of it is NaN has to be kept, and dy need not be masked.
    """
    y, axes = _with_zeros(node.outputs[0]), rules.normalized_axes(op, node)
    if y is None or not axes:
        return rules.softmax(op, node, dy)
    dy = _unmasked(dy, y)
    return y * (dy - op.ReduceSum(dy * y, axes, keepdims=1))


def zeros_for_nan(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """Where(IsNaN(y), 0, y) of a Softmax: the numbers of y that are above 0, which NaN is not, in a single pass."""
    y = node.inputs[2]
    if y is None or not _is(y.producer(), "Softmax") or y.dtype != ir.DataType.FLOAT:
        return None
    return [op.ThresholdedRelu(y, alpha=0.0)] if _with_zeros(y) is node.outputs[0] else None


def _is(node: ir.Node | None, op_type: str) -> bool:
    return node is not None and (node.op_type, node.domain) == (op_type, "")


def _with_zeros(y: ir.Value) -> ir.Value | None:
    """The result of Where(IsNaN(y), 0, y), if nothing else reads y."""
    readers = list(dict.fromkeys(use.node for use in y.uses()))
    tests = [node for node in readers if _is(node, "IsNaN")]
    choices = [node for node in readers if _is(node, "Where") and node.inputs[2] is y]
    if y.is_graph_output() or len(readers) != 2 or len(tests) != 1 or len(choices) != 1:
        return None
    found, zero = choices[0], constant_of(choices[0].inputs[1])
    if found.inputs[0] is not tests[0].outputs[0] or zero is None or zero.any():
        return None
    return found.outputs[0] if same_dims(dims(found.outputs[0]), dims(y)) else None


def _unmasked(dy: ir.Value, y: ir.Value) -> ir.Value:
    """dy before what is NaN in the forward pass was masked in it, the gradient of the Where above."""
    choice, masking = y.producer(), dy.producer()
    assert choice is not None
    if masking is None or masking.op_type != "Where" or masking.inputs[0] is not choice.inputs[0]:
        return dy
    zero, given = constant_of(masking.inputs[1]), masking.inputs[2]
    return dy if given is None or zero is None or zero.any() else given

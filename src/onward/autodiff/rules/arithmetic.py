"""Functions of several tensors that broadcast against each other."""

from __future__ import annotations

import onnx_ir as ir

from onward.autodiff.registry import elementwise
from onward.graph.builder import Builder
from onward.graph.nodes import constant_of, input_at
from onward.graph.shapes import is_floating

Row = list[ir.Value | None]


@elementwise("Add")
def add(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    return [dy, dy]


@elementwise("Sub")
def sub(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    return [dy, -dy]


@elementwise("Mul")
def mul(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    a, b = node.inputs
    return [dy * b, dy * a]


@elementwise("Div")
def div(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    b, y = node.inputs[1], node.outputs[0]
    da = dy / b
    return [da, -da * y]


@elementwise("Pow")
def pow_(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """d(a^b) = b a^(b-1) da + a^b log(a) db; at a = 0 the second term is 0, as in torch."""
    a, b, y = node.inputs[0], node.inputs[1], node.outputs[0]
    known = constant_of(b)
    if known is not None and known.size == 1:
        da = _power_cotangent(op, dy, a, float(known.reshape(())))
    else:
        exponent = op.cast(b, a.dtype)
        # Where the exponent is 0 the slope is 0, also at a = 0, where a^(-1) is infinite.
        either = op.Or(op.cast(a, ir.DataType.BOOL), op.cast(exponent, ir.DataType.BOOL))
        da = dy * (exponent * op.Pow(op.Where(either, a, 1), exponent - 1))
    if not is_floating(b):
        return [da, None]
    log = op.Log(op.Where(op.cast(a, ir.DataType.BOOL), a, 1))
    return [da, op.cast(dy * y * log, b.dtype)]


def _power_cotangent(op: Builder, dy: ir.Value, a: ir.Value, exponent: float) -> ir.Value:
    """dy b a^(b-1) for a number b."""
    if exponent == 0:
        return dy * 0
    if exponent == 1:
        return dy
    if exponent == 2:
        return dy * (a * 2)
    return dy * (op.Pow(a, op.constant(exponent - 1, a.dtype)) * exponent)


@elementwise("Sum")
def sum_(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    return [dy for _ in node.inputs]


@elementwise("Mean")
def mean(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    share = dy / len(node.inputs)
    return [share for _ in node.inputs]


@elementwise("Max", "Min")
def extremum(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """Inputs that tie share the cotangent evenly, as in torch."""
    y = node.outputs[0]
    if len(node.inputs) == 1:
        return [dy]
    hits = [op.cast(op.Equal(x, y), y.dtype) for x in node.inputs]
    share = dy / op.Sum(*hits)
    return [share * hit for hit in hits]


@elementwise("Where")
def where(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    condition = node.inputs[0]
    return [None, op.Where(condition, dy, 0), op.Where(condition, 0, dy)]


@elementwise("Clip")
def clip(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """y = min(max(x, low), high).

    The slope on the bounds is 1, as that of torch's clamp, where y and x are equal too. A Clip from the constant 0 is
    an activation, ReLU6 and its like: there it is 0, as in torch and as that of Relu.
    """
    x, y = node.inputs[0], node.outputs[0]
    low, high = input_at(node, 1), input_at(node, 2)
    inside = _between(op, y, high) if is_activation(node) else op.Equal(x, y)
    row: Row = [op.Where(inside, dy, 0), None, None]
    above = None
    if high is not None:
        above = op.Greater(x if low is None else op.Max(x, low), high)
        row[2] = op.Where(above, dy, 0)
    if low is not None:
        below = op.Less(x, low)
        row[1] = op.Where(below if above is None else op.And(below, op.Not(above)), dy, 0)
    return row[: len(node.inputs)]


def is_activation(node: ir.Node) -> bool:
    """Whether a Clip is from the constant 0 to a larger one, or to none."""
    low, high = constant_of(input_at(node, 1)), input_at(node, 2)
    bound = constant_of(high)
    rises = high is None or (bound is not None and bound.size == 1 and bound.item() > 0)
    return low is not None and low.size == 1 and low.item() == 0 and rises


def _between(op: Builder, y: ir.Value, high: ir.Value | None) -> ir.Value:
    above = op.Greater(y, 0)
    return above if high is None else op.And(above, op.Less(y, high))


@elementwise("PRelu")
def prelu(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    x, slope = node.inputs
    positive = op.Greater(x, 0)
    return [op.Where(positive, dy, dy * slope), op.Where(positive, 0, dy * x)]


@elementwise("Mod")
def mod(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """a - q b with the integer quotient q constant almost everywhere; floats always use fmod, which truncates."""
    a, b, y = node.inputs[0], node.inputs[1], node.outputs[0]
    return [dy, -dy * op.Round((a - y) / b)]

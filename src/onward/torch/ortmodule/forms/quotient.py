"""Quotients and powers: whole ones, what remains, angles, and none by zero."""

from __future__ import annotations

import math
import re

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.constants import constant_array
from onward.graph.nodes import input_at
from onward.graph.provenance.record import OPERATION
from onward.torch.ortmodule.forms.origin import made_by, operands_of_quotient
from onward.torch.ortmodule.marks import sloped

_SCALAR = re.compile(r"\(args = \(%\w+, (-?[\d.]+(?:e-?\d+)?)\)")


def atan2(op: Builder, node: ir.Node) -> ir.Value | None:
    """The angle in the first quadrant, brought to its own; dy = x / (x^2 + y^2), dx = -y / (x^2 + y^2), 0 at 0."""
    operands = operands_of_quotient(node)
    if operands is None:
        return None
    y, x = operands
    far, wide = op.Abs(y), op.Abs(x)
    angle = op.Where(op.Equal(far, wide), math.pi / 4, op.Atan(far / wide))
    angle = op.Where(op.And(op.Equal(x, 0), op.Equal(y, 0)), 0, angle)
    angle = op.Where(is_negative(op, x), math.pi - angle, angle)
    angle = op.Where(is_negative(op, y), -angle, angle)
    square = x * x + y * y
    scale = op.Where(op.Equal(square, 0), 0, op.Reciprocal(square))
    return sloped(op, sloped(op, angle, y, x * scale), x, -y * scale)


def is_negative(op: Builder, x: ir.Value) -> ir.Value:
    """Whether there is a sign, zeros included."""
    return op.Less(op.Where(op.Equal(x, 0), op.Reciprocal(x), x), 0)


def sinc(op: Builder, node: ir.Node) -> ir.Value | None:
    """Without a division by zero, whose gradient would not be a number."""
    quotient = made_by(input_at(node, 2), "Div")
    if quotient is None:
        return None
    x = quotient.inputs[1]
    is_zero = op.Equal(x, 0)
    inside = op.Where(is_zero, 1, x)
    return op.Where(is_zero, 1, op.Sin(inside) / inside)


def power(op: Builder, node: ir.Node) -> ir.Value | None:
    """Of a norm: no gradient at 0."""
    x, exponent = node.inputs
    number = constant_array(exponent)
    while number is None and (cast := made_by(exponent, "CastLike")) is not None:
        exponent = cast.inputs[0]
        number = constant_array(exponent)
    if x is None or number is None or not float(number.reshape(())) > 0:
        return None
    is_zero = op.Equal(x, 0)
    return op.Where(is_zero, 0, op.Pow(op.Where(is_zero, 1, x), node.inputs[1]))


def remainder(op: Builder, node: ir.Node) -> ir.Value | None:
    """By fmod, which is exact, where x - floor(x / y) y loses digits."""
    operands = operands_of_quotient(node)
    return None if operands is None else _floored(op, node, *operands)[1]


def floor_divide(op: Builder, node: ir.Node) -> ir.Value | None:
    """(x - remainder) / y, which is a whole number but for rounding."""
    quotient = made_by(node.inputs[0], "Div")
    if quotient is None:
        return None
    whole, _ = _floored(op, node, *quotient.inputs)
    return op.Where(op.Equal(quotient.inputs[1], 0), quotient.outputs[0], op.Floor(whole + 0.5))


def _floored(op: Builder, node: ir.Node, x: ir.Value | None, y: ir.Value | None) -> tuple[ir.Value, ir.Value]:
    """Quotient and remainder; that has the sign of y."""
    assert x is not None
    assert y is not None
    scalar = _SCALAR.search(node.metadata_props.get(OPERATION, ""))
    if scalar is not None:  # the exporter has rounded it to single precision
        y = op.constant(float(scalar[1]), x.dtype)
    rest = op.Mod(x, y, fmod=1)
    other = op.And(op.Not(op.Equal(rest, 0)), op.Xor(op.Less(rest, 0), op.Less(y, 0)))
    return (x - rest) / y - op.Where(other, op.constant(1, x.dtype), 0), rest + op.Where(other, y, 0)

"""Functions of one tensor, element by element."""

from __future__ import annotations

import math

import onnx_ir as ir

from onward.autodiff.registry import pointwise, vjp
from onward.graph.builder import Builder
from onward.graph.nodes import attribute
from onward.graph.shapes import is_floating

pointwise(
    {
        "Identity": lambda op, dy, x, y: dy,
        "Neg": lambda op, dy, x, y: -dy,
        # The subgradient at a kink is the one torch takes: 0 for Abs and Relu.
        "Abs": lambda op, dy, x, y: dy * op.Sign(x),
        # y is not negative, so that it is above 0 where it is not 0; NaN lets dy pass, as in torch.
        "Relu": lambda op, dy, x, y: op.Where(op.cast(y, ir.DataType.BOOL), dy, 0),
        "Exp": lambda op, dy, x, y: dy * y,
        "Log": lambda op, dy, x, y: dy / x,
        "Sqrt": lambda op, dy, x, y: dy / (y * 2),
        "Reciprocal": lambda op, dy, x, y: -dy * (y * y),
        "Sin": lambda op, dy, x, y: dy * op.Cos(x),
        "Cos": lambda op, dy, x, y: -dy * op.Sin(x),
        "Tan": lambda op, dy, x, y: dy * (y * y + 1),
        "Asin": lambda op, dy, x, y: dy / op.Sqrt(1 - x * x),
        "Acos": lambda op, dy, x, y: -dy / op.Sqrt(1 - x * x),
        "Atan": lambda op, dy, x, y: dy / (x * x + 1),
        "Sinh": lambda op, dy, x, y: dy * op.Cosh(x),
        "Cosh": lambda op, dy, x, y: dy * op.Sinh(x),
        "Tanh": lambda op, dy, x, y: dy * (1 - y * y),
        "Asinh": lambda op, dy, x, y: dy / op.Sqrt(x * x + 1),
        # As a product of roots: x * x - 1 would lose everything near 1.
        "Acosh": lambda op, dy, x, y: dy / (op.Sqrt(x - 1) * op.Sqrt(x + 1)),
        "Atanh": lambda op, dy, x, y: dy / (1 - x * x),
        "Sigmoid": lambda op, dy, x, y: dy * (y * (1 - y)),
        "Softplus": lambda op, dy, x, y: dy * op.Sigmoid(x),
        "Softsign": lambda op, dy, x, y: dy / _square(op.Abs(x) + 1),
        "Erf": lambda op, dy, x, y: dy * (op.Exp(-(x * x)) * (2 / math.sqrt(math.pi))),
        "HardSwish": lambda op, dy, x, y: dy * _hard_swish_slope(op, x),
        "Mish": lambda op, dy, x, y: dy * _mish_slope(op, x),
    }
)


def _square(x: ir.Value) -> ir.Value:
    return x * x


def _hard_swish_slope(op: Builder, x: ir.Value) -> ir.Value:
    """y = x clip(x + 3, 0, 6) / 6; the kinks belong to the outer parts, as in torch."""
    middle = op.Where(op.LessOrEqual(x, -3), 0, x * (1 / 3) + 0.5)
    return op.Where(op.GreaterOrEqual(x, 3), 1, middle)


def _mish_slope(op: Builder, x: ir.Value) -> ir.Value:
    """d/dx x tanh(softplus(x)) = t + x (1 - t^2) sigmoid(x), with t = tanh(softplus(x))."""
    t = op.Tanh(op.Softplus(x))
    return t + x * (1 - t * t) * op.Sigmoid(x)


@vjp("LeakyRelu")
def leaky_relu(op: Builder, node: ir.Node, dy: ir.Value) -> ir.Value:
    return op.Where(op.Greater(node.inputs[0], 0), dy, dy * attribute(node, "alpha", 0.01))


@vjp("ThresholdedRelu")
def thresholded_relu(op: Builder, node: ir.Node, dy: ir.Value) -> ir.Value:
    return op.Where(op.Greater(node.inputs[0], attribute(node, "alpha", 1.0)), dy, 0)


@vjp("Elu")
def elu(op: Builder, node: ir.Node, dy: ir.Value) -> ir.Value:
    """y = x for x > 0, else alpha (exp(x) - 1)."""
    y = node.outputs[0]
    return op.Where(op.Greater(node.inputs[0], 0), dy, dy * (y + attribute(node, "alpha", 1.0)))


@vjp("Selu")
def selu(op: Builder, node: ir.Node, dy: ir.Value) -> ir.Value:
    """y = gamma x for x > 0, else gamma alpha (exp(x) - 1)."""
    alpha = attribute(node, "alpha", 1.67326319217681884765625)
    gamma = attribute(node, "gamma", 1.05070102214813232421875)
    y = node.outputs[0]
    return op.Where(op.Greater(node.inputs[0], 0), dy * gamma, dy * (y + alpha * gamma))


@vjp("Celu")
def celu(op: Builder, node: ir.Node, dy: ir.Value) -> ir.Value:
    """y = max(0, x) + min(0, alpha (exp(x / alpha) - 1))."""
    alpha = attribute(node, "alpha", 1.0)
    return op.Where(op.Greater(node.inputs[0], 0), dy, dy * (node.outputs[0] / alpha + 1))


@vjp("HardSigmoid")
def hard_sigmoid(op: Builder, node: ir.Node, dy: ir.Value) -> ir.Value:
    """y = clip(alpha x + beta, 0, 1); the slope is alpha strictly inside, as in torch."""
    y = node.outputs[0]
    inside = op.And(op.Greater(y, 0), op.Less(y, 1))
    return op.Where(inside, dy * attribute(node, "alpha", 0.2), 0)


@vjp("Shrink")
def shrink(op: Builder, node: ir.Node, dy: ir.Value) -> ir.Value:
    return op.Where(op.Greater(op.Abs(node.inputs[0]), attribute(node, "lambd", 0.5)), dy, 0)


@vjp("Swish")
def swish(op: Builder, node: ir.Node, dy: ir.Value) -> ir.Value:
    """y = x s(alpha x): the slope is s + alpha y (1 - s)."""
    x, y = node.inputs[0], node.outputs[0]
    alpha = attribute(node, "alpha", 1.0)
    s = op.Sigmoid(x if alpha == 1 else x * alpha)
    return dy * (s + (y if alpha == 1 else y * alpha) * (1 - s))


@vjp("Gelu")
def gelu(op: Builder, node: ir.Node, dy: ir.Value) -> ir.Value:
    """y = x F(x), with F the normal distribution function or its tanh approximation."""
    x = node.inputs[0]
    if attribute(node, "approximate", "none") == "tanh":
        c = math.sqrt(2 / math.pi)
        t = op.Tanh((x + x * x * x * 0.044715) * c)
        return dy * ((t + 1) * 0.5 + x * (1 - t * t) * (x * x * (3 * 0.044715) + 1) * (0.5 * c))
    # F = (1 + erf(v)) / 2, and x F' = v exp(-v v) / sqrt(pi), with x = v sqrt(2).
    v = x * math.sqrt(0.5)
    return dy * (op.Erf(v) + v * op.Exp(math.log(2 / math.sqrt(math.pi)) - v * v) + 1) * 0.5


@vjp("Cast", "CastLike")
def cast(op: Builder, node: ir.Node, dy: ir.Value) -> list[ir.Value | None]:
    x = node.inputs[0]
    # Integers that carry a cotangent are quantised numbers: it stays floating point.
    return [op.cast(dy, x.dtype) if is_floating(x) else dy]

"""The activation functions that recurrent operators name in an attribute, with their derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import onnx_ir as ir

from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.graph.nodes import attribute, describe


@dataclass(frozen=True)
class Gate:
    """The value of a gate, y = f(clip(a)), and its derivative with respect to what went into it."""

    op: Builder
    function: Function
    a: ir.Value
    clipped: ir.Value
    value: ir.Value

    def slope(self) -> ir.Value:
        """f'(a)"""
        f = self.function
        return self._where_unclipped(f.kind.slope(self.op, self.clipped, self.value, f.alpha, f.beta))

    def slope_times(self, x: ir.Value, xy: ir.Value | None = None) -> ir.Value:
        """x f'(a); `xy` is x y, if that is there already."""
        scaled = self.function.kind.scaled_slope
        if scaled is None:
            return x * self.slope()
        return self._where_unclipped(scaled(x, self.value, x * self.value if xy is None else xy))

    def _where_unclipped(self, slope: ir.Value) -> ir.Value:
        """A clipped input has no slope."""
        clip = self.function.clip
        return slope if clip is None else self.op.Where(self.op.Less(self.op.Abs(self.a), clip), slope, 0)


@dataclass(frozen=True)
class Function:
    """One entry of the attribute `activations`, with the clipping that goes before it."""

    kind: _Kind
    alpha: float
    beta: float
    clip: float | None

    def value(self, op: Builder, a: ir.Value) -> ir.Value:
        """f(clip(a))"""
        return self.kind.value(op, self._clipped(op, a), self.alpha, self.beta)

    def gate(self, op: Builder, a: ir.Value) -> Gate:
        """f(clip(a)), which knows its derivative."""
        clipped = self._clipped(op, a)
        return Gate(op, self, a, clipped, self.kind.value(op, clipped, self.alpha, self.beta))

    def unclipped(self) -> Function:
        """The same function of anything."""
        return replace(self, clip=None)

    def _clipped(self, op: Builder, a: ir.Value) -> ir.Value:
        return a if self.clip is None else op.Clip(a, -self.clip, self.clip)


Value = Callable[[Builder, ir.Value, float, float], ir.Value]
Slope = Callable[[Builder, ir.Value, ir.Value, float, float], ir.Value]
ScaledSlope = Callable[[ir.Value, ir.Value, ir.Value], ir.Value]


class _Kind(NamedTuple):
    value: Value
    slope: Slope  # from a, y = f(a), alpha and beta
    defaults: tuple[float, ...] = ()  # of alpha, or of alpha and beta, for functions that have them
    scaled_slope: ScaledSlope | None = None  # x f'(a) from x, y and x y, where those say it shorter


def _is(op: Builder, condition: ir.Value, like: ir.Value) -> ir.Value:
    """1 where a condition holds and 0 elsewhere."""
    assert like.dtype is not None
    return op.cast(condition, like.dtype)


def _scaled_tanh_slope(op: Builder, a: ir.Value, y: ir.Value, alpha: float, beta: float) -> ir.Value:
    t = op.Tanh(a * beta)
    return (1 - t * t) * (alpha * beta)


def _softsign_slope(op: Builder, a: ir.Value, y: ir.Value, alpha: float, beta: float) -> ir.Value:
    s = 1 / (op.Abs(a) + 1)
    return s * s


# Slopes at a kink do not matter: 0 or either side. The defaults are the standard's; where it has none of its own
# (Affine, ScaledTanh) and for ThresholdedRelu they are 0 in onnxruntime, which runs the forward pass.
_KINDS = {
    "relu": _Kind(lambda op, a, alpha, beta: op.Relu(a), lambda op, a, y, alpha, beta: _is(op, op.Greater(a, 0), a)),
    "tanh": _Kind(
        lambda op, a, alpha, beta: op.Tanh(a),
        lambda op, a, y, alpha, beta: 1 - y * y,
        scaled_slope=lambda x, y, xy: x - xy * y,
    ),
    "sigmoid": _Kind(
        lambda op, a, alpha, beta: op.Sigmoid(a),
        lambda op, a, y, alpha, beta: y - y * y,
        scaled_slope=lambda x, y, xy: xy - xy * y,
    ),
    "affine": _Kind(
        lambda op, a, alpha, beta: a * alpha + beta,
        lambda op, a, y, alpha, beta: op.ones_like(a) * alpha,
        (0.0, 0.0),
    ),
    "leakyrelu": _Kind(
        lambda op, a, alpha, beta: op.LeakyRelu(a, alpha=alpha),
        lambda op, a, y, alpha, beta: _is(op, op.Greater(a, 0), a) * (1 - alpha) + alpha,
        (0.01,),
    ),
    "thresholdedrelu": _Kind(
        lambda op, a, alpha, beta: op.Where(op.Greater(a, alpha), a, 0),
        lambda op, a, y, alpha, beta: _is(op, op.Greater(a, alpha), a),
        (0.0,),
    ),
    "scaledtanh": _Kind(lambda op, a, alpha, beta: op.Tanh(a * beta) * alpha, _scaled_tanh_slope, (0.0, 0.0)),
    "hardsigmoid": _Kind(
        lambda op, a, alpha, beta: op.HardSigmoid(a, alpha=alpha, beta=beta),
        lambda op, a, y, alpha, beta: _is(op, op.And(op.Greater(y, 0), op.Less(y, 1)), a) * alpha,
        (0.2, 0.5),
    ),
    "elu": _Kind(
        lambda op, a, alpha, beta: op.Elu(a, alpha=alpha),
        # The exponential is taken of what cannot overflow.
        lambda op, a, y, alpha, beta: op.Where(op.Greater(a, 0), 1, op.Exp(-op.Relu(-a)) * alpha),
        (1.0,),
    ),
    "softsign": _Kind(lambda op, a, alpha, beta: op.Softsign(a), _softsign_slope),
    "softplus": _Kind(lambda op, a, alpha, beta: op.Softplus(a), lambda op, a, y, alpha, beta: op.Sigmoid(a)),
}


def functions_of(node: ir.Node, defaults: Sequence[str]) -> list[list[Function]]:
    """For each direction of a recurrent node its activation functions, by default those named.

    The values of activation_alpha and activation_beta go to those functions that have such a parameter, in order.
    """
    directions = 2 if attribute(node, "direction", "forward") == "bidirectional" else 1
    names = attribute(node, "activations", ()) or tuple(defaults) * directions
    alphas = iter(attribute(node, "activation_alpha", ()))
    betas = iter(attribute(node, "activation_beta", ()))
    clip = attribute(node, "clip", None)
    found = [_function(node, name, alphas, betas, clip) for name in names]
    return [found[index : index + len(defaults)] for index in range(0, directions * len(defaults), len(defaults))]


def _function(
    node: ir.Node, name: str, alphas: Iterator[float], betas: Iterator[float], clip: float | None
) -> Function:
    kind = _KINDS.get(name.lower())
    if kind is None:
        raise OnwardError(
            f"{describe(node)} has the activation {name!r}, which the standard does not define; it has {sorted(_KINDS)}"
        )
    arguments = [next(values, default) for values, default in zip((alphas, betas), kind.defaults, strict=False)]
    alpha, beta = (*arguments, 0.0, 0.0)[:2]
    return Function(kind, alpha, beta, clip)

"""Convolutions with what was fused into them, and those with channels last."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.contrib.activation import activated
from onward.graph.contrib.domain import rewrites
from onward.graph.nodes import attribute, input_at
from onward.graph.rewriting.registry import RefusedError
from onward.graph.shapes import rank

_CONV = "auto_pad dilations group kernel_shape pads strides"
_FUSED = f"{_CONV} activation activation_params"

# The names of `activation_params`, in their order.
_PARAMETERS = {
    "LeakyRelu": ("alpha",),
    "Clip": ("low", "high"),
    "HardSigmoid": ("alpha", "beta"),
    "Elu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
}


@rewrites("FusedConv", reads=_FUSED)
def fused_conv(op: Builder, node: ir.Node) -> ir.Value:
    """y = activation(conv(x, w) + b + z)."""
    return _activated(op, node, _with_sum(op, op.Conv(*_operands(node), **_settings(node)), node))


@rewrites("NhwcConv", reads=_CONV)
def nhwc_conv(op: Builder, node: ir.Node) -> ir.Value:
    return _channels_last(op, node)


@rewrites("NhwcFusedConv", reads=_FUSED)
def nhwc_fused_conv(op: Builder, node: ir.Node) -> ir.Value:
    return _activated(op, node, _with_sum(op, _channels_last(op, node), node))


def _channels_last(op: Builder, node: ir.Node) -> ir.Value:
    """The axes of x and y are moved; the weight has the layout of the standard."""
    x, weight, bias = _operands(node)
    assert x is not None
    axes = list(range(rank(x)))
    first = op.Transpose(x, perm=[0, axes[-1], *axes[1:-1]])
    y: ir.Value = op.Conv(first, weight, bias, **_settings(node))
    return op.Transpose(y, perm=[0, *axes[2:], 1])


def _operands(node: ir.Node) -> list[ir.Value | None]:
    return [input_at(node, index) for index in range(3)]


def _settings(node: ir.Node) -> dict[str, Any]:
    return {name: node.attributes[name].value for name in _CONV.split() if name in node.attributes}


def _with_sum(op: Builder, y: ir.Value, node: ir.Node) -> ir.Value:
    z = input_at(node, 3)
    return y if z is None else op.Add(y, z)


def _activated(op: Builder, node: ir.Node, y: ir.Value) -> ir.Value:
    name = attribute(node, "activation", "")
    given: tuple[float, ...] = attribute(node, "activation_params", ())
    names = _PARAMETERS.get(name, ())
    if len(given) > len(names):
        raise RefusedError(f"its activation {name!r} does not take {len(given)} parameters")
    return activated(op, y, name, dict(zip(names, given, strict=False)))

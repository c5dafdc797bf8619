"""Activations, alone and as the attribute of a fused operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.contrib.domain import rewrites
from onward.graph.nodes import attribute, input_at
from onward.graph.rewriting.registry import RefusedError
from onward.graph.shapes import dims, rank


@rewrites("Gelu")
def gelu(op: Builder, node: ir.Node) -> ir.Value:
    return op.Gelu(node.inputs[0])


@rewrites("BiasGelu")
def bias_gelu(op: Builder, node: ir.Node) -> ir.Value:
    return op.Gelu(op.Add(*node.inputs))


@rewrites("FastGelu")
def fast_gelu(op: Builder, node: ir.Node) -> ir.Value:
    return _fast_gelu(op, with_bias(op, node.inputs[0], input_at(node, 1)))


@rewrites("GemmFastGelu")
def gemm_fast_gelu(op: Builder, node: ir.Node) -> ir.Value:
    return _fast_gelu(op, with_bias(op, op.MatMul(*node.inputs[:2]), input_at(node, 2)))


def _fast_gelu(op: Builder, x: ir.Value) -> ir.Value:
    return op.Gelu(x, approximate="tanh")


@rewrites("QuickGelu", reads="alpha")
def quick_gelu(op: Builder, node: ir.Node) -> ir.Value:
    """y = x s(alpha x)."""
    x, alpha = node.inputs[0], attribute(node, "alpha", 1.702)
    assert x is not None
    return x * op.Sigmoid(x if alpha == 1 else x * alpha)


@rewrites("BiasSplitGelu")
def bias_split_gelu(op: Builder, node: ir.Node) -> ir.Value:
    """y = left gelu(right) of the two halves of x + bias."""
    left, right = halves(op, op.Add(*node.inputs))
    return left * op.Gelu(right)


@rewrites("BiasAdd")
def bias_add(op: Builder, node: ir.Node) -> ir.Value:
    x, bias, skip = node.inputs
    assert x is not None
    return x + bias + skip


@rewrites("BiasDropout", reads="seed")
def bias_dropout(op: Builder, node: ir.Node) -> list[ir.Value]:
    """y = dropout(x + bias) + residual."""
    x, bias, residual, ratio, training = (input_at(node, index) for index in range(5))
    seed = attribute(node, "seed", None)
    dropped, mask = op.Dropout(op.Add(x, bias), ratio, training, outputs=2, seed=seed)
    return [with_bias(op, dropped, residual), mask]


@rewrites("BiasSoftmax", reads="axis is_inner_broadcast")
def bias_softmax(op: Builder, node: ir.Node) -> ir.Value:
    """The softmax of x + bias over all axes from `axis` on, taken together.

    Which axes the bias is repeated along follows from its shape, whatever `is_inner_broadcast` says.
    """
    x, axis = op.Add(*node.inputs), attribute(node, "axis", 1)
    if axis % rank(x) == rank(x) - 1:
        return op.Softmax(x, axis=-1)
    return op.reshape_like(op.Softmax(op.Flatten(x, axis=axis), axis=-1), x)


def with_bias(op: Builder, x: ir.Value | None, bias: ir.Value | None) -> ir.Value:
    """x + bias, where there is one."""
    assert x is not None
    return x if bias is None else op.Add(x, bias)


def halves(op: Builder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The two halves of the last axis."""
    known = (dims(x) or [None])[-1]
    size = [known // 2] if isinstance(known, int) else op.Div(op.dim(x, -1), 2)
    left: ir.Value = op.Slice(x, [0], size, [-1])
    right: ir.Value = op.Slice(x, size, [2**31 - 1], [-1])
    return left, right


# What the attribute `activation` of fused operators names: a function of the value and of the activation's parameters.
_FUSED: Mapping[str, Callable[..., ir.Value]] = {
    "Relu": lambda op, x: op.Relu(x),
    "Sigmoid": lambda op, x: op.Sigmoid(x),
    "Tanh": lambda op, x: op.Tanh(x),
    "Softplus": lambda op, x: op.Softplus(x),
    "Softsign": lambda op, x: op.Softsign(x),
    "Elu": lambda op, x, alpha=1.0: op.Elu(x, alpha=alpha),
    "LeakyRelu": lambda op, x, alpha=0.01: op.LeakyRelu(x, alpha=alpha),
    "ThresholdedRelu": lambda op, x, alpha=1.0: op.ThresholdedRelu(x, alpha=alpha),
    "Clip": lambda op, x, low, high: op.Clip(x, low, high),
    "HardSigmoid": lambda op, x, alpha=0.2, beta=0.5: op.HardSigmoid(x, alpha=alpha, beta=beta),
    "Selu": lambda op, x, alpha=1.67326319, gamma=1.05070102: op.Selu(x, alpha=alpha, gamma=gamma),
    "ScaledTanh": lambda op, x, alpha, beta: op.Tanh(x * beta) * alpha,
    "ParametricSoftplus": lambda op, x, alpha, beta: op.Softplus(x * beta) * alpha,
    "Gelu": lambda op, x: op.Gelu(x),
    "HardSwish": lambda op, x: op.HardSwish(x),
    "Silu": lambda op, x: x * op.Sigmoid(x),
}


def activated(op: Builder, x: ir.Value, name: str, parameters: Mapping[str, float]) -> ir.Value:
    """`x` after the activation that a fused operator names."""
    if not name:
        return x
    if name not in _FUSED:
        raise RefusedError(f"its activation {name!r} is not known")
    try:
        return _FUSED[name](op, x, **parameters)
    except TypeError:
        raise RefusedError(f"its activation {name!r} does not take the parameters {dict(parameters)}") from None

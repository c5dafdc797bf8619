"""What is made of the scores of a model: the attribute `post_transform`, as onnxruntime computes it."""

from __future__ import annotations

import math

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.nodes import attribute
from onward.graph.rewriting.registry import RefusedError


def transform_of(node: ir.Node) -> str:
    """The name of the transformation."""
    name = attribute(node, "post_transform", "NONE")
    if name not in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"):
        raise RefusedError(f"its post_transform {name!r} is not known")
    return name


def transformed(op: Builder, scores: ir.Value, width: int, transform: str) -> ir.Value:
    """Scores [N, width] after a transformation; of those, a single column knows but PROBIT."""
    if transform == "PROBIT":
        return _probit(op, scores)
    if transform == "NONE" or width == 1:
        return scores
    if transform == "LOGISTIC":
        return op.Sigmoid(scores)
    return op.Softmax(scores, axis=1) if transform == "SOFTMAX" else _softmax_zero(op, scores)


def both_classes(op: Builder, score: ir.Value, transform: str, *, mirrored: bool = False) -> ir.Value:
    """Behind the score of the first of two classes, which is -s if it is `mirrored`, else 1 - s, that of the second, s.

    LOGISTIC takes both from s and -s. (onnxruntime left it out in this place until 1.24 at least; the standard does
    not.) The other transformations do nothing here, and PROBIT leaves one of the scores undefined.
    """
    if transform == "PROBIT":
        raise RefusedError("onnxruntime leaves one of its two scores undefined with post_transform PROBIT")
    if transform == "LOGISTIC":
        return op.Sigmoid(op.Concat(op.Neg(score), score, axis=1))
    return op.Concat(op.Neg(score) if mirrored else 1 - score, score, axis=1)


def _softmax_zero(op: Builder, scores: ir.Value) -> ir.Value:
    """The softmax of the scores that are not zero; those that are stay zero."""
    zero = op.Not(op.Greater(op.Abs(scores), 1e-7))
    most = op.ReduceMax(scores, [1], keepdims=1)
    powers = op.Where(zero, scores * op.Exp(op.Neg(most)), op.Exp(scores - most))
    return powers / op.ReduceSum(op.Where(zero, 0, powers), [1], keepdims=1)


def _probit(op: Builder, scores: ir.Value) -> ir.Value:
    """sqrt(2) erfinv(2 s - 1), with the approximation of erfinv (and of pi) that onnxruntime has.

    sign(x) sqrt(sqrt(v^2 - log / 0.147) - v), log = log(1 - x^2), v = 2 / (0.147 pi) + log / 2
    """
    x = 2 * scores - 1
    log = op.Log((1 - x) * (1 + x))
    v = 0.5 * log + 2 / (3.14159 * 0.147)
    magnitude = op.Sqrt(op.Sqrt(v * v - log * (1 / 0.147)) - v)
    return op.Where(op.Less(x, 0), op.Neg(magnitude), magnitude) * math.sqrt(2)

"""Losses with a margin: targets are -1 or 1, or there are none and predictions are compared with each other."""

from __future__ import annotations

import math

import onnx_ir as ir

from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.losses.base import reduce, softplus, targets
from onward.losses.target import class_axis, like_prediction, one_per_row


@targets(target=like_prediction)
def hinge(
    op: Builder, prediction: ir.Value, target: ir.Value, *, margin: float = 1.0, reduction: str = "mean"
) -> ir.Value:
    """max(0, margin - t x) for targets -1 and 1: the loss of support vector machines."""
    return reduce(op, op.Relu(margin - target * prediction), reduction)


@targets(target=like_prediction)
def hinge_embedding(
    op: Builder, prediction: ir.Value, target: ir.Value, *, margin: float = 1.0, reduction: str = "mean"
) -> ir.Value:
    """x for target 1, max(0, margin - x) for target -1: x is a distance. torch's HingeEmbeddingLoss."""
    return reduce(op, op.Where(op.Greater(target, 0), prediction, op.Relu(margin - prediction)), reduction)


@targets(target=like_prediction)
def soft_margin(op: Builder, prediction: ir.Value, target: ir.Value, *, reduction: str = "mean") -> ir.Value:
    """log(1 + exp(-t x)) for targets -1 and 1; finite also where torch's overflows."""
    return reduce(op, softplus(op, -(target * prediction)), reduction)


@targets(target=one_per_row)
def cosine_embedding(
    op: Builder, first: ir.Value, second: ir.Value, target: ir.Value, *, margin: float = 0.0, reduction: str = "mean"
) -> ir.Value:
    """1 - cos(a, b) for target 1, max(0, cos(a, b) - margin) for target -1; vectors `[N, D]`, targets `[N]`."""
    axes = [class_axis(first)]

    def product(a: ir.Value, b: ir.Value) -> ir.Value:
        return op.ReduceSum(a * b, axes, keepdims=0)

    # The same small number as in torch, so that vectors of length 0 have a slope.
    lengths = op.Sqrt((product(first, first) + 1e-12) * (product(second, second) + 1e-12))
    cosine = product(first, second) / lengths
    rows = op.Where(op.Greater(target, 0), 1 - cosine, op.Relu(cosine - margin))
    return reduce(op, rows, reduction)


@targets()
def triplet(
    op: Builder,
    anchor: ir.Value,
    positive: ir.Value,
    negative: ir.Value,
    *,
    margin: float = 1.0,
    p: float = 2.0,
    swap: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> ir.Value:
    """max(0, d(anchor, positive) - d(anchor, negative) + margin) with d the p-norm over the last axis.

    `swap` takes the smaller of d(anchor, negative) and d(positive, negative). As in torch, `eps` is added to each
    difference, so that equal vectors have a slope.
    """
    if not p > 0:
        raise OnwardError(f"triplet needs p > 0, not {p!r}")
    near = _distance(op, anchor, positive, p, eps)
    far = _distance(op, anchor, negative, p, eps)
    if swap:
        far = op.Min(far, _distance(op, positive, negative, p, eps))
    return reduce(op, op.Relu(near - far + margin), reduction)


def _distance(op: Builder, a: ir.Value, b: ir.Value, p: float, eps: float) -> ir.Value:
    axes = [-1 if a.shape is None else len(a.shape) - 1]
    difference = a - b + eps
    if p == 1:
        return op.ReduceL1(difference, axes, keepdims=0)
    if p == 2:
        return op.ReduceL2(difference, axes, keepdims=0)
    if math.isinf(p):
        return op.ReduceMax(op.Abs(difference), axes, keepdims=0)
    return op.Pow(op.ReduceSum(op.Pow(op.Abs(difference), p), axes, keepdims=0), 1 / p)

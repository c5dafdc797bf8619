"""Losses of numbers: the target has the shape of the prediction, `x` is the prediction and `t` the target."""

from __future__ import annotations

import math

import onnx_ir as ir

from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.losses.base import reduce, targets
from onward.losses.target import like_prediction


@targets(target=like_prediction)
def mse(op: Builder, prediction: ir.Value, target: ir.Value, *, reduction: str = "mean") -> ir.Value:
    """(x - t)^2."""
    return reduce(op, op.Pow(prediction - target, 2.0), reduction)


@targets(target=like_prediction)
def l1(op: Builder, prediction: ir.Value, target: ir.Value, *, reduction: str = "mean") -> ir.Value:
    """|x - t|."""
    return reduce(op, op.Abs(prediction - target), reduction)


@targets(target=like_prediction)
def huber(
    op: Builder, prediction: ir.Value, target: ir.Value, *, delta: float = 1.0, reduction: str = "mean"
) -> ir.Value:
    """d^2 / 2 where |d| = |x - t| is at most delta, else delta (|d| - delta / 2)."""
    if not delta > 0:
        raise OnwardError(f"huber needs delta > 0, not {delta!r}")
    return reduce(op, _huber(op, prediction - target, delta), reduction)


@targets(target=like_prediction)
def smooth_l1(
    op: Builder, prediction: ir.Value, target: ir.Value, *, beta: float = 1.0, reduction: str = "mean"
) -> ir.Value:
    """d^2 / (2 beta) where |d| = |x - t| is below beta, else |d| - beta / 2: the huber loss divided by beta."""
    if beta < 0:
        raise OnwardError(f"smooth_l1 needs beta >= 0, not {beta!r}")
    if beta == 0:
        return l1(op, prediction, target, reduction=reduction)
    rows = _huber(op, prediction - target, beta)
    return reduce(op, rows if beta == 1 else rows / beta, reduction)


def _huber(op: Builder, d: ir.Value, delta: float) -> ir.Value:
    # With c = d clipped to [-delta, delta] both branches are c (d - c / 2), and the slope is c.
    c = op.Clip(d, -delta, delta)
    return c * (d - c * 0.5)


@targets(target=like_prediction)
def poisson_nll(
    op: Builder,
    prediction: ir.Value,
    target: ir.Value,
    *,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> ir.Value:
    """exp(x) - t x for x = log(rate), or x - t log(x + eps) for the rate itself; `full` adds log(t!) by Stirling."""
    rate, log_rate = (op.Exp(prediction), prediction) if log_input else (prediction, op.Log(prediction + eps))
    rows = rate - target * log_rate
    return reduce(op, rows + _stirling(op, target) if full else rows, reduction)


def _stirling(op: Builder, t: ir.Value) -> ir.Value:
    """log(t!) = t log(t) - t + log(2 pi t) / 2, and 0 for t <= 1, as in torch."""
    above = op.Greater(t, 1)
    log = op.Log(op.Where(above, t, 1))
    return op.Where(above, t * log - t + (log + math.log(2 * math.pi)) * 0.5, 0)


@targets(target=like_prediction)
def gaussian_nll(
    op: Builder,
    prediction: ir.Value,
    variance: ir.Value,
    target: ir.Value,
    *,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> ir.Value:
    """(log(v) + (x - t)^2 / v) / 2 with v = max(variance, eps); `full` adds log(2 pi) / 2.

    The variance is the second prediction. It may have size 1 on the last axis, or lack that axis. Where it is below
    `eps` its slope is 0; torch takes the slope at `eps`.
    """
    if not eps > 0:
        raise OnwardError(f"gaussian_nll needs eps > 0, not {eps!r}")
    if variance.shape is not None and prediction.shape is not None and len(variance.shape) == len(prediction.shape) - 1:
        variance = op.Unsqueeze(variance, [len(variance.shape)])
    v, difference = op.Clip(variance, eps), prediction - target
    rows = (op.Log(v) + difference * difference / v) * 0.5
    return reduce(op, rows + 0.5 * math.log(2 * math.pi) if full else rows, reduction)

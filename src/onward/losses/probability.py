"""Losses of probabilities and of the logits of two classes; the target has the shape of the prediction."""

from __future__ import annotations

import math

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.losses.base import REDUCTIONS, Weights, check_reduction, reduce, softplus, targets
from onward.losses.classification import check_gamma
from onward.losses.target import like_prediction

# Logarithms are cut at -100, as in torch, or where the type has no normal number any more.
_LOWEST_LOG = -100.0
_SMALLEST = {ir.DataType.DOUBLE: math.exp(_LOWEST_LOG), ir.DataType.FLOAT16: 6.2e-5}


@targets(target=like_prediction)
def bce(
    op: Builder, prediction: ir.Value, target: ir.Value, *, weight: Weights | None = None, reduction: str = "mean"
) -> ir.Value:
    """-w (t log(x) + (1 - t) log(1 - x)) for probabilities x, with logarithms cut at -100, as in torch.

    Where a logarithm is cut its slope is 0; torch divides by 1e-12 there.
    """
    rows = -(target * _cut_log(op, prediction) + (1 - target) * _cut_log(op, 1 - prediction))
    return reduce(op, rows if weight is None else rows * weight, reduction)


def _cut_log(op: Builder, x: ir.Value) -> ir.Value:
    assert x.dtype is not None
    positive = op.Greater(x, _SMALLEST.get(x.dtype, 1.2e-38))
    return op.Where(positive, op.Log(op.Where(positive, x, 1)), _LOWEST_LOG)


@targets(target=like_prediction)
def bce_with_logits(
    op: Builder,
    prediction: ir.Value,
    target: ir.Value,
    *,
    weight: Weights | None = None,
    pos_weight: Weights | None = None,
    reduction: str = "mean",
) -> ir.Value:
    """-w (q t log(s) + (1 - t) log(1 - s)) for s = sigmoid(x) and q = pos_weight, without computing s.

    log(s) = -softplus(-x) and log(1 - s) = -softplus(x) = -x - softplus(-x), which stay finite for all logits.
    """
    if pos_weight is None:
        rows = softplus(op, prediction) - target * prediction
    else:
        share = op.Mul(target, op.Sub(pos_weight, op.constant(1, target.dtype))) + 1
        rows = (1 - target) * prediction + share * softplus(op, -prediction)
    return reduce(op, rows if weight is None else rows * weight, reduction)


@targets(target=like_prediction)
def binary_focal(
    op: Builder,
    prediction: ir.Value,
    target: ir.Value,
    *,
    alpha: float | None = 0.25,
    gamma: float = 2.0,
    reduction: str = "mean",
) -> ir.Value:
    """-alpha_t (1 - p_t)^gamma log(p_t), with p_t the probability of the right class (Lin et al. 2017).

    The prediction is a logit, the target 0 or 1; alpha_t is alpha for 1 and 1 - alpha for 0, and 1 for alpha=None.
    """
    check_gamma("binary_focal", gamma)
    z = prediction * (target * 2 - 1)  # the logit of p_t
    rows = softplus(op, -z)  # -log(p_t)
    if gamma:
        # 1 - p_t = exp(-softplus(z)) and softplus(z) = z + softplus(-z): finite in value and slope for every gamma.
        rows = rows * op.Exp((z + rows) * -gamma)
    if alpha is not None:
        rows = rows * (target * (2 * alpha - 1) + (1 - alpha))
    return reduce(op, rows, reduction)


@targets(target=like_prediction)
def kl_div(
    op: Builder, prediction: ir.Value, target: ir.Value, *, log_target: bool = False, reduction: str = "mean"
) -> ir.Value:
    """t (log(t) - x) for x = log(probability), 0 where t = 0; `log_target` says that the target is log(t).

    The mean is over all elements; "batchmean" divides the sum by the size of the first axis, which is the divergence.
    """
    check_reduction(reduction, (*REDUCTIONS, "batchmean"))
    if log_target:
        rows = op.Exp(target) * (target - prediction)
    else:
        rows = target * (op.Log(op.Where(op.Greater(target, 0), target, 1)) - prediction)
    if reduction != "batchmean":
        return reduce(op, rows, reduction)
    assert prediction.dtype is not None
    return reduce(op, rows, "sum") / op.cast(op.size(prediction, [0]), prediction.dtype)

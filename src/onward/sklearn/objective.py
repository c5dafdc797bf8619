"""What estimators minimise: scikit-learn's losses, and its penalty on weights."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Builder
from onward.head.ending import PROBABILITY, SIGMOID
from onward.losses.base import Loss, declared_signature, loss_signature, reduce, targets, with_signature
from onward.losses.classification import cross_entropy, nll
from onward.losses.probability import bce_with_logits
from onward.losses.registry import get
from onward.losses.target import class_indices, like_prediction
from onward.losses.weighted import SAMPLE_WEIGHT, weighted


@targets(target=like_prediction)
def half_squared_error(op: Builder, prediction: ir.Value, target: ir.Value, *, reduction: str = "mean") -> ir.Value:
    """(x - t)^2 / 2, summed over the numbers of a row: what scikit-learn's MLPRegressor follows the slope of."""
    difference = prediction - target
    return reduce(op, _row_sums(op, difference * difference) * 0.5, reduction)


@targets(target=like_prediction)
def log_loss(op: Builder, prediction: ir.Value, target: ir.Value, *, reduction: str = "mean") -> ir.Value:
    """The log loss of yes or no, summed over the scores of a row."""
    return reduce(op, _row_sums(op, bce_with_logits(op, prediction, target, reduction="none")), reduction)


@targets(target=like_prediction)
def one_against_all(op: Builder, prediction: ir.Value, target: ir.Value, *, reduction: str = "mean") -> ir.Value:
    """The log loss of each class against all others; of two classes it is their log loss."""
    return reduce(op, _row_sums(op, bce_with_logits(op, prediction, target, reduction="none")) * 0.5, reduction)


@targets(labels=class_indices)
def probability_loss(op: Builder, prediction: ir.Value, labels: ir.Value, *, reduction: str = "mean") -> ir.Value:
    """-log(p[label]); probabilities below the smallest normal number count as that."""
    assert prediction.dtype is not None
    smallest = float(np.finfo(prediction.dtype.numpy()).tiny)
    return nll(op, op.Log(op.Clip(prediction, smallest)), labels, reduction=reduction)


def _row_sums(op: Builder, rows: ir.Value) -> ir.Value:
    if rows.shape is not None and len(rows.shape) == 1:
        return rows
    return op.ReduceSum(op.Flatten(rows, axis=1), [1], keepdims=0)


def classification_loss(link: str, width: int, *, exclusive: bool) -> Loss:
    """The loss of scores that become probabilities in this way."""
    if link == SIGMOID:
        return one_against_all if exclusive and width > 1 else log_loss
    return probability_loss if link == PROBABILITY else cross_entropy


def objective(loss: str | Loss, *, alpha: float, matrices: Sequence[str], sample_weight: bool) -> Loss:
    """A loss, weighted if need be, and a penalty on the parameters called `matrices`."""
    found = get(loss)
    if sample_weight:
        found = weighted(found)
    return penalised(found, alpha, matrices) if alpha and matrices else found


def penalised(loss: Loss, alpha: float, matrices: Sequence[str]) -> Loss:
    """loss + alpha / (2 n) sum(w^2), with n the rows of the batch or the sum of their weights: scikit-learn's."""
    signature = declared_signature(loss) or loss_signature(loss)

    def penalised_loss(op: Builder, **values: ir.Value) -> ir.Value:
        value, prediction = loss(op, **values), values[signature.predictions[0]]
        assert prediction.dtype is not None
        if SAMPLE_WEIGHT in values:
            total = op.ReduceSum(values[SAMPLE_WEIGHT], keepdims=0)
            rows = op.Where(op.Equal(total, 0), math.inf, total)  # a batch without weight has no slope
        else:
            rows = op.cast(op.size(prediction, [0]), prediction.dtype)
        weights = (op.graph.initializers[name] for name in matrices)
        squares = functools.reduce(lambda a, b: a + b, (op.ReduceSumSquare(w, keepdims=0) for w in weights))
        return value + op.cast(squares, prediction.dtype) * (alpha / 2) / rows

    return with_signature(penalised_loss, signature.predictions, signature.targets)

"""Losses of class scores `[N, C, d1, ...]` with labels `[N, d1, ...]`, or `[C]` with a scalar; class weights `[C]`."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.graph.opsets import NeedsOpsetError
from onward.graph.shapes import dims
from onward.losses.base import Weights, check_reduction, reduce, targets
from onward.losses.target import checked_labels, class_axis, class_indices, like_prediction
from onward.losses.terms import Terms, mean_of


def _weights_that_count(
    op: Builder,
    rows: ir.Value,
    *,
    prediction: ir.Value,
    labels: ir.Value,
    weight: Weights | None = None,
    ignore_index: int | None = None,
    **others: object,
) -> Terms:
    """The mean divides by the sum of w[label] over the rows that are not ignored."""
    found = _class_weights(op, prediction, weight)
    if found is None and ignore_index is None:
        return Terms(rows)
    return Terms(rows, _row_weights(op, labels, found, ignore_index, rows))


def _rows_that_count(
    op: Builder, rows: ir.Value, *, labels: ir.Value, ignore_index: int | None = None, **others: object
) -> Terms:
    return Terms(rows) if ignore_index is None else Terms(rows, _row_weights(op, labels, None, ignore_index, rows))


def _count_weights(
    *, labels: np.ndarray, weight: Weights | None = None, ignore_index: int | None = None, **others: object
) -> np.ndarray | None:
    """The same of arrays."""
    if weight is None:
        return _count_rows(labels=labels, ignore_index=ignore_index)
    counted = np.ones(labels.shape, bool) if ignore_index is None else labels != ignore_index
    return np.where(counted, np.asarray(weight, np.float64)[np.where(counted, labels, 0)], 0.0)


def _count_rows(*, labels: np.ndarray, ignore_index: int | None = None, **others: object) -> np.ndarray | None:
    return None if ignore_index is None else (labels != ignore_index).astype(np.float64)


@mean_of(_weights_that_count, counted=_count_weights)
@targets(labels=class_indices)
def cross_entropy(
    op: Builder,
    prediction: ir.Value,
    labels: ir.Value,
    *,
    weight: Weights | None = None,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> ir.Value:
    """-w[label] log softmax(x)[label]; the mean divides by the sum of w[label], as in torch.

    Unlike in torch no label is ignored unless `ignore_index` says so. Smoothing moves that part of each target from
    the label to all classes alike: (1 - s) nll - s mean(w log softmax(x)).
    """
    check_reduction(reduction)
    if not 0 <= label_smoothing <= 1:
        raise OnwardError(f"cross_entropy needs label_smoothing between 0 and 1, not {label_smoothing!r}")
    weight = _class_weights(op, prediction, weight)
    scores, labels, alone = _with_batch(op, prediction, labels)
    loss, log_prob = op.SoftmaxCrossEntropyLoss(
        scores, labels, weight, reduction=reduction, ignore_index=ignore_index, outputs=2
    )
    if label_smoothing:
        weighted = log_prob if weight is None else log_prob * _as_column(op, weight, prediction)
        rows = -op.ReduceMean(weighted, [1], keepdims=0)
        smooth = _reduce_rows(op, rows, labels, weight, ignore_index, reduction)
        loss = loss * (1 - label_smoothing) + smooth * label_smoothing
    return _without_batch(op, loss, alone, reduction)


@targets(target=like_prediction)
def soft_cross_entropy(
    op: Builder,
    prediction: ir.Value,
    target: ir.Value,
    *,
    weight: Weights | None = None,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> ir.Value:
    """-sum(w t log softmax(x)) over the classes, for targets that are probabilities; the mean is that of the rows."""
    if not 0 <= label_smoothing <= 1:
        raise OnwardError(f"soft_cross_entropy needs label_smoothing between 0 and 1, not {label_smoothing!r}")
    axis = class_axis(prediction)
    if op.opset < 13 and prediction.shape is not None and len(prediction.shape) > 2:
        # Before, all axes from `axis` on were one.
        raise NeedsOpsetError("LogSoftmax", 13)
    log_prob = op.LogSoftmax(prediction, axis=axis)
    weight = _class_weights(op, prediction, weight)
    if weight is not None:
        log_prob = log_prob * _as_column(op, weight, prediction)
    rows = op.ReduceSum(log_prob * target, [axis], keepdims=0)
    if label_smoothing:
        rows = rows * (1 - label_smoothing) + op.ReduceMean(log_prob, [axis], keepdims=0) * label_smoothing
    return reduce(op, -rows, reduction)


@mean_of(_weights_that_count, counted=_count_weights)
@targets(labels=class_indices)
def nll(
    op: Builder,
    prediction: ir.Value,
    labels: ir.Value,
    *,
    weight: Weights | None = None,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> ir.Value:
    """-w[label] x[label] for logarithms of probabilities x; the mean divides by the sum of w[label], as in torch."""
    check_reduction(reduction)
    weight = _class_weights(op, prediction, weight)
    scores, labels, alone = _with_batch(op, prediction, labels)
    loss = op.NegativeLogLikelihoodLoss(scores, labels, weight, reduction=reduction, ignore_index=ignore_index)
    return _without_batch(op, loss, alone, reduction)


@mean_of(_rows_that_count, counted=_count_rows)
@targets(labels=class_indices)
def focal(
    op: Builder,
    prediction: ir.Value,
    labels: ir.Value,
    *,
    alpha: Weights | None = None,
    gamma: float = 2.0,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> ir.Value:
    """-alpha[label] (1 - p)^gamma log(p) with p = softmax(x)[label] (Lin et al. 2017); `alpha` is one number a class.

    The mean is that of the rows which are not ignored. For two classes with one score see `binary_focal`.
    """
    check_reduction(reduction)
    check_gamma("focal", gamma)
    alpha = _class_weights(op, prediction, alpha, "alpha")
    scores, labels, alone = _with_batch(op, prediction, labels)
    rows, _ = op.SoftmaxCrossEntropyLoss(scores, labels, reduction="none", ignore_index=ignore_index, outputs=2)
    if gamma:
        miss = 1 - op.Exp(-rows)
        if gamma < 1:
            # The slope of the power is infinite at 0.
            miss = op.Clip(miss, 1e-7)
        rows = rows * (miss if gamma == 1 else op.Pow(miss, gamma))
    if alpha is not None:
        rows = rows * _row_weights(op, labels, alpha, ignore_index, rows)
    return _without_batch(op, _reduce_rows(op, rows, labels, None, ignore_index, reduction), alone, reduction)


@targets(labels=class_indices)
def multi_margin(
    op: Builder,
    prediction: ir.Value,
    labels: ir.Value,
    *,
    p: int = 1,
    margin: float = 1.0,
    weight: Weights | None = None,
    reduction: str = "mean",
) -> ir.Value:
    """The hinge loss of several classes: w[label] mean over the other classes c of max(0, margin - x[label] + x[c])^p.

    The mean divides by all C classes, as in torch.
    """
    if p not in (1, 2):
        raise OnwardError(f"multi_margin needs p = 1 or p = 2, not {p!r}")
    check_reduction(reduction)
    weight = _class_weights(op, prediction, weight)
    scores, labels, alone = _with_batch(op, prediction, labels)
    labels = checked_labels(op, labels, scores)
    chosen = op.GatherElements(scores, op.Unsqueeze(labels, [1]), axis=1)
    excess = op.Relu(scores - chosen + margin)
    # The label's own term, which the sum leaves out, is the constant max(0, margin)^p and has no slope.
    own = op.Div(max(margin, 0.0) ** p, op.cast(op.size(scores, [1]), prediction.dtype))  # type: ignore[arg-type]
    rows = op.ReduceMean(excess if p == 1 else excess * excess, [1], keepdims=0) - own
    if weight is not None:
        rows = rows * op.Gather(weight, labels, axis=0)
    return _without_batch(op, reduce(op, rows, reduction), alone, reduction)


def check_gamma(name: str, gamma: float) -> None:
    if not gamma >= 0:
        raise OnwardError(f"{name} needs gamma >= 0, not {gamma!r}")


def _class_weights(op: Builder, prediction: ir.Value, weight: Weights | None, name: str = "weight") -> ir.Value | None:
    """Class weights as a value of the type of the scores; their number is checked where the classes are known."""
    if weight is None or isinstance(weight, ir.Value):
        return weight
    array = np.asarray(weight)
    known = dims(prediction)
    classes = None if known is None else known[class_axis(prediction)]
    if array.ndim != 1 or (isinstance(classes, int) and len(array) != classes):
        wanted = classes if isinstance(classes, int) else "number of classes"
        raise OnwardError(f"`{name}` needs one number a class, shape [{wanted}], not shape {list(array.shape)}")
    return op.constant(array, prediction.dtype)


def _as_column(op: Builder, weight: ir.Value, prediction: ir.Value) -> ir.Value:
    """Class weights shaped to broadcast against `[N, C, d1, ...]`."""
    if prediction.shape is None:
        raise OnwardError("label smoothing with class weights needs the rank of the scores, which is unknown")
    extra = max(len(prediction.shape) - 2, 0)
    return op.reshape(weight, [-1] + [1] * extra) if extra else weight


def _with_batch(op: Builder, scores: ir.Value, labels: ir.Value) -> tuple[ir.Value, ir.Value, bool]:
    """The standard's operators want a batch axis: `[C]` becomes `[1, C]`."""
    if scores.shape is None or len(scores.shape) != 1:
        return scores, labels, False
    return op.Unsqueeze(scores, [0]), op.Unsqueeze(labels, [0]), True


def _without_batch(op: Builder, loss: ir.Value, alone: bool, reduction: str) -> ir.Value:
    return op.Squeeze(loss, [0]) if alone and reduction == "none" else loss


def _row_weights(
    op: Builder, labels: ir.Value, weight: ir.Value | None, ignore_index: int | None, like: ir.Value
) -> ir.Value:
    """w[label] of each row, 0 for those that are ignored."""
    if ignore_index is None:
        return op.Gather(weight, labels, axis=0)
    ignored = op.Equal(labels, ignore_index)
    if weight is None:
        return op.cast(op.Not(ignored), like.dtype)  # type: ignore[arg-type]
    # The index may lie outside of the classes.
    return op.Where(ignored, 0, op.Gather(weight, op.Where(ignored, 0, labels), axis=0))


def _reduce_rows(
    op: Builder,
    rows: ir.Value,
    labels: ir.Value,
    weight: ir.Value | None,
    ignore_index: int | None,
    reduction: str,
) -> ir.Value:
    """Reduce rows that contain their weights already; the mean divides by the sum of the weights that count."""
    if ignore_index is not None:
        rows = op.Where(op.Equal(labels, ignore_index), 0, rows)
    if reduction != "mean" or (weight is None and ignore_index is None):
        return reduce(op, rows, reduction)
    counted = _row_weights(op, labels, weight, ignore_index, rows)
    return reduce(op, rows, "sum") / reduce(op, counted, "sum")

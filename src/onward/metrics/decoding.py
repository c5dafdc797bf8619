"""Scores and labels of classes, from whatever shape a model returns them in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.errors import OnwardError
from onward.metrics.base import Output, flat_weight

_BLOCK = 2**20  # elements


@dataclass(frozen=True)
class Reading:
    """How predictions and targets are read.

    Args:
        ignore_index: the label of elements that do not count.
        class_axis: that of the classes; None means axis 1, or the last one where only that fits the targets.
    """

    output: Output = Output.LOGITS
    ignore_index: int | None = -100
    class_axis: int | None = None


@dataclass(frozen=True)
class Scores:
    """Elements of a batch: scores of classes `[M, C]` with labels `[M]`, or of yes and no, both `[M]` or `[M, L]`."""

    scores: np.ndarray
    labels: np.ndarray
    weight: np.ndarray | None
    threshold: float | None = None  # where they are scores of yes and no

    @property
    def predicted(self) -> np.ndarray:
        if self.threshold is not None:
            return (self.scores > self.threshold).astype(np.int64)
        return np.asarray(self.scores.argmax(axis=1))

    @property
    def classes(self) -> int:
        return 2 if self.threshold is not None else int(self.scores.shape[1])

    @property
    def is_multilabel(self) -> bool:
        return self.labels.ndim == 2

    @property
    def is_defined(self) -> bool:
        return not self.scores.size or not np.isnan(self.scores.max())


def read(prediction: Any, target: Any, weight: Any, reading: Reading) -> Scores:
    """The elements of a batch that count."""
    scores, labels = np.asarray(prediction), np.asarray(target)
    if scores.dtype.kind not in "fiu" and "float" not in scores.dtype.name:
        raise OnwardError(f"a prediction is {scores.dtype}, which are no scores")
    if scores.dtype.kind == "V":  # bfloat16
        scores = scores.astype(np.float32)
    if reading.output.is_binary or _is_one_score(scores, labels):
        return _yes_or_no(scores, labels, weight, reading.output)
    if labels.ndim == scores.ndim and labels.shape != scores.shape:
        labels = _squeezed(labels)
    axis = _class_axis(scores, labels, reading.class_axis)
    scores = np.moveaxis(scores, axis, -1)
    if labels.ndim == scores.ndim:
        labels = np.moveaxis(labels, axis, -1).argmax(axis=-1)  # one-hot, or probabilities
    weights = flat_weight(weight, labels.shape)
    scores, labels = scores.reshape(-1, scores.shape[-1]), _whole(labels).reshape(-1)
    if reading.ignore_index is not None and (labels == reading.ignore_index).any():
        kept = labels != reading.ignore_index
        scores, labels, weights = scores[kept], labels[kept], None if weights is None else weights[kept]
    if labels.size and (labels.min() < 0 or labels.max() >= scores.shape[1]):
        wrong = labels[(labels < 0) | (labels >= scores.shape[1])][0]
        raise OnwardError(f"a label is {wrong}, but there are scores of {scores.shape[1]} classes, from 0 on")
    return Scores(scores, labels, weights)


def _is_one_score(scores: np.ndarray, labels: np.ndarray) -> bool:
    """Whether there is one score for each label, where several classes have one each otherwise."""
    return _squeezed(scores).shape == _squeezed(labels).shape and (scores.ndim == 1 or scores.shape[1] == 1)


def _yes_or_no(scores: np.ndarray, labels: np.ndarray, weight: Any, output: Output) -> Scores:
    scores, labels = _squeezed(scores), _squeezed(labels)
    if scores.shape != labels.shape:
        raise OnwardError(
            f"scores of yes and no have the shape of their targets, not {list(scores.shape)} and {list(labels.shape)}"
        )
    truth = (labels > (0 if output is Output.MARGINS else 0.5)).astype(np.int64)
    if scores.ndim == 2:
        return Scores(scores, truth, flat_weight(weight, scores.shape[:1]), output.threshold)
    weights = flat_weight(weight, scores.shape)
    return Scores(scores.reshape(-1), truth.reshape(-1), weights, output.threshold)


def _squeezed(array: np.ndarray) -> np.ndarray:
    """Without a second axis of size 1: one score for each row, or for each place of an image."""
    return array.squeeze(1) if array.ndim > 1 and array.shape[1] == 1 else array


def _class_axis(scores: np.ndarray, labels: np.ndarray, given: int | None) -> int:
    axes = [1, scores.ndim - 1] if given is None else [given % scores.ndim]
    for axis in axes:
        if scores.ndim > 1 and labels.shape in (_without(scores, axis), scores.shape):
            return axis
    raise OnwardError(
        f"labels of shape {list(labels.shape)} do not fit scores of shape {list(scores.shape)}: scores are [N, C, ...] "
        "or [N, ..., C], labels [N, ...]"
    )


def _without(scores: np.ndarray, axis: int) -> tuple[int, ...]:
    return tuple(size for index, size in enumerate(scores.shape) if index != axis)


def _whole(labels: np.ndarray) -> np.ndarray:
    if labels.dtype.kind in "iub":
        return labels.astype(np.int64, copy=False)
    with np.errstate(invalid="ignore"):
        whole = labels.astype(np.int64)
    if not np.array_equal(whole, labels):
        raise OnwardError("labels are the numbers of classes, but some are no whole numbers")
    return whole


def log_probabilities(scores: Scores, output: Output) -> np.ndarray:
    """log p of the label of each element `[M]` or `[M, L]`, in float64."""
    if scores.threshold is not None:
        x = scores.scores.astype(np.float64)
        sign = np.where(scores.labels == 1, 1.0, -1.0)
        if scores.threshold == 0:
            return -np.logaddexp(0, -sign * x)
        p = _clipped(x, scores.scores.dtype)
        return np.log(np.where(sign > 0, p, 1 - p))
    chosen = scores.scores[np.arange(len(scores.labels)), scores.labels].astype(np.float64)
    if output is Output.LOG_PROBABILITIES:
        return chosen
    if output is Output.PROBABILITIES:
        return np.log(_clipped(chosen, scores.scores.dtype))
    with np.errstate(invalid="ignore"):  # infinite logits have no probabilities, but NaN
        return chosen - _log_sum_exp(scores.scores)


def _clipped(p: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Probabilities away from 0 and 1, as scikit-learn does it: by the precision that they came in."""
    eps = np.finfo(dtype if dtype.kind == "f" else np.float64).eps
    return np.clip(p, eps, 1 - eps)


def probabilities(scores: np.ndarray, output: Output) -> np.ndarray:
    """Scores of classes as something in the order of their probabilities, comparable between rows."""
    if output in (Output.PROBABILITIES, Output.LOG_PROBABILITIES):
        return scores
    with np.errstate(invalid="ignore"):
        return np.asarray(np.exp(scores - _log_sum_exp(scores)[:, None]))


def _log_sum_exp(x: np.ndarray) -> np.ndarray:
    """log sum exp(x) of each row in float64, some rows at a time: vocabularies make rows long."""
    sums = np.empty(len(x))
    step = max(1, _BLOCK // x.shape[1])
    for first in range(0, len(x), step):
        rows = x[first : first + step].astype(np.float64)
        top = rows.max(axis=1, keepdims=True)
        sums[first : first + step] = np.log(np.exp(rows - top).sum(axis=1)) + top[:, 0]
    return sums

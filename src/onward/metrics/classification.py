"""Metrics of predicted classes: counts, which are added up from batch to batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from onward.errors import OnwardError
from onward.metrics.base import Metric, ratio
from onward.metrics.decoding import Reading, Scores, read

AVERAGES = ("binary", "macro", "micro", "weighted")


class ScoreMetric(Metric):
    """A metric of scores and labels; not defined once a score is NaN."""

    higher_is_better: ClassVar[bool | None] = True

    def __init__(self, name: str, reading: Reading) -> None:
        self.reading = reading
        super().__init__(name)

    def start(self) -> None:
        self._defined = True

    def update(self, prediction: Any, target: Any, weight: Any = None) -> None:
        scores = read(prediction, target, weight, self.reading)
        self._defined = self._defined and scores.is_defined
        if self._defined and len(scores.labels):
            self.count(scores)

    def merge(self, parts: Sequence[Any]) -> None:
        self._defined = self._defined and all(part._defined for part in parts)

    def result(self) -> float:
        return self.value() if self._defined else float("nan")

    @abstractmethod
    def count(self, scores: Scores) -> None: ...

    @abstractmethod
    def value(self) -> float: ...


class Accuracy(ScoreMetric):
    """The share of elements whose class is right; with several questions of yes and no, of rows that are all right."""

    def start(self) -> None:
        super().start()
        self._right = self._all = 0.0

    def hits(self, scores: Scores) -> np.ndarray:
        equal = scores.predicted == scores.labels
        return equal.all(axis=1) if scores.is_multilabel else equal

    def count(self, scores: Scores) -> None:
        hits, weight = self.hits(scores), scores.weight
        self._right += float(hits.sum() if weight is None else weight[hits].sum())
        self._all += float(len(hits) if weight is None else weight.sum())

    def merge(self, parts: Sequence[Any]) -> None:
        super().merge(parts)
        for part in parts:
            self._right += part._right
            self._all += part._all

    def value(self) -> float:
        return float(ratio(self._right, self._all))


class TopK(Accuracy):
    """The share of elements whose class is among the k with the highest scores; of equal scores, the later classes."""

    def __init__(self, name: str, reading: Reading, k: int = 5) -> None:
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise OnwardError(f"top_k needs a number of classes k, at least 1, not {k!r}")
        self.k = k
        super().__init__(name, reading)

    def hits(self, scores: Scores) -> np.ndarray:
        if scores.is_multilabel:
            raise OnwardError("top_k is for classes of which one is right, not for several questions of yes and no")
        if self.k >= scores.classes:
            return np.ones(len(scores.labels), np.bool_)
        if scores.threshold is not None:
            return np.asarray(scores.predicted == scores.labels)
        labels = scores.labels[:, None]
        own = np.take_along_axis(scores.scores, labels, axis=1)
        later = np.arange(scores.classes) > labels
        return np.asarray(((scores.scores > own) | ((scores.scores == own) & later)).sum(axis=1) < self.k)


class _PerClass(ScoreMetric):
    """Counts for each class: right ones, predicted ones, true ones."""

    def start(self) -> None:
        super().start()
        self._counts = np.zeros((3, 0))
        self._seen = np.zeros(0, np.bool_)
        self._is_binary = self._is_multilabel = False

    def count(self, scores: Scores) -> None:
        self._is_multilabel = scores.is_multilabel
        self._is_binary = scores.classes == 2 and not scores.is_multilabel
        predicted, labels, weight = scores.predicted, scores.labels, scores.weight
        if scores.is_multilabel:
            rows = np.ones(len(labels)) if weight is None else weight
            new = np.stack([rows @ (predicted & labels), rows @ predicted, rows @ labels])
            seen = np.ones(labels.shape[1], np.bool_)
        else:
            size, hits = scores.classes, predicted == labels
            new = np.stack(
                [
                    np.bincount(labels[hits], None if weight is None else weight[hits], size),
                    np.bincount(predicted, weight, size),
                    np.bincount(labels, weight, size),
                ]
            )
            seen = (np.bincount(labels, minlength=size) + np.bincount(predicted, minlength=size)) > 0
        self._add(new, seen)

    def _add(self, new: np.ndarray, seen: np.ndarray) -> None:
        if not self._counts.shape[1]:
            self._counts, self._seen = np.zeros(new.shape), np.zeros(seen.shape, np.bool_)
        if self._counts.shape != new.shape:
            raise OnwardError(
                f"a batch has scores of {new.shape[1]} classes, those before it had {self._counts.shape[1]}"
            )
        self._counts += new
        self._seen |= seen

    def merge(self, parts: Sequence[Any]) -> None:
        super().merge(parts)
        for part in parts:
            if part._counts.shape[1]:
                self._add(part._counts, part._seen)
                self._is_binary, self._is_multilabel = part._is_binary, part._is_multilabel


class BalancedAccuracy(_PerClass):
    """The mean over the classes that occur of the share of their elements that is found."""

    def count(self, scores: Scores) -> None:
        if scores.is_multilabel:
            raise OnwardError("balanced_accuracy is for classes of which one is right; use recall_macro")
        super().count(scores)

    def value(self) -> float:
        right, _, true = self._counts
        occurs = true > 0
        return float(np.mean(right[occurs] / true[occurs])) if occurs.any() else float("nan")


class _Averaged(_PerClass):
    """A metric of one class against the others, and its average over the classes that occur or are predicted.

    Args:
        average: "binary" is that of class 1, "micro" counts all classes together, "macro" is the mean and "weighted"
            the mean by the number of elements. None is "binary" where there are two classes, else "macro".
    """

    def __init__(self, name: str, reading: Reading, average: str | None = None) -> None:
        if average not in (None, *AVERAGES):
            raise OnwardError(f"average={average!r} is not known; use one of {', '.join(map(repr, AVERAGES))}")
        self.average = average
        super().__init__(name, reading)

    @abstractmethod
    def score(self, right: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> np.ndarray:
        """That of each class; 0 where there is nothing to divide by."""

    def value(self) -> float:
        average = self.average or ("binary" if self._is_binary else "macro")
        if not self._seen.any():
            return float("nan")
        if average == "binary":
            if not self._is_binary:
                raise OnwardError(f"{self.name} is of two classes; use {self.name.removesuffix('_binary')}_macro")
            return float(self.score(*self._counts[:, 1:])[0])
        counts = self._counts[:, self._seen]
        if average == "micro":
            return float(self.score(*counts.sum(axis=1, keepdims=True))[0])
        each, weights = self.score(*counts), counts[2]
        if average == "macro":
            return float(each.mean())
        return float(ratio(float(each @ weights), float(weights.sum()), 0.0))


class Precision(_Averaged):
    """The share of the elements predicted as a class that belong to it."""

    def score(self, right: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> np.ndarray:
        return ratio(right, predicted, 0.0)


class Recall(_Averaged):
    """The share of the elements of a class that are found."""

    def score(self, right: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> np.ndarray:
        return ratio(right, true, 0.0)


class F1(_Averaged):
    """2 right / (predicted + true), the harmonic mean of precision and recall."""

    def score(self, right: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> np.ndarray:
        return ratio(2 * right, predicted + true, 0.0)

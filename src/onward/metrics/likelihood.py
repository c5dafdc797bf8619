"""Metrics of the probability that a model gives to the right class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from onward.metrics.base import ratio
from onward.metrics.classification import ScoreMetric
from onward.metrics.decoding import Scores, log_probabilities


class LogLoss(ScoreMetric):
    """The mean of -log p(label); with several questions of yes and no, the mean over all of them."""

    higher_is_better: ClassVar[bool | None] = False

    def start(self) -> None:
        super().start()
        self._sum = self._all = 0.0

    def count(self, scores: Scores) -> None:
        each = -log_probabilities(scores, self.reading.output)
        if scores.is_multilabel:
            each = each.mean(axis=1)
        self._sum += float(each.sum() if scores.weight is None else each @ scores.weight)
        self._all += float(len(each) if scores.weight is None else scores.weight.sum())

    def merge(self, parts: Sequence[Any]) -> None:
        super().merge(parts)
        for part in parts:
            self._sum += part._sum
            self._all += part._all

    def value(self) -> float:
        return float(ratio(self._sum, self._all))


class Perplexity(LogLoss):
    """exp of the mean of -log p(label)."""

    def value(self) -> float:
        with np.errstate(over="ignore"):
            return float(np.exp(super().value()))

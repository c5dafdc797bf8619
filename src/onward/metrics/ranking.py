"""The area under the receiver operating characteristic, which needs all scores at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onward.metrics.base import Output, in_turn
from onward.metrics.classification import ScoreMetric
from onward.metrics.decoding import Scores, probabilities


class AUC(ScoreMetric):
    """How often an element of a class has a higher score than one of another class; equal scores count half.

    Of several classes it is the mean of each against all others. Not defined for a class that no element, or every
    one, belongs to.
    """

    def start(self) -> None:
        super().start()
        self._scores: list[np.ndarray] = []
        self._truth: list[np.ndarray] = []
        self._weights: list[np.ndarray] = []

    def count(self, scores: Scores) -> None:
        x, truth = scores.scores, scores.labels
        if scores.threshold is None and scores.classes == 2:
            # Of logits the odds, which do not run into 1 as the probabilities do.
            x = x[:, 1].astype(np.float64) - x[:, 0] if self.reading.output is Output.LOGITS else x[:, 1]
        elif scores.threshold is None:
            x = probabilities(x, self.reading.output)
            truth = truth[:, None] == np.arange(scores.classes)
        self._scores.append(x.reshape(len(x), -1))
        self._truth.append(truth.reshape(len(x), -1).astype(np.bool_))
        self._weights.append(np.ones(len(x)) if scores.weight is None else scores.weight)

    def merge(self, parts: Sequence[Any]) -> None:
        super().merge(parts)
        self._scores.extend(in_turn(part._scores for part in parts))
        self._truth.extend(in_turn(part._truth for part in parts))
        self._weights.extend(in_turn(part._weights for part in parts))

    def value(self) -> float:
        if not self._scores:
            return float("nan")
        scores, truth, weights = map(np.concatenate, (self._scores, self._truth, self._weights))
        return float(np.mean([_area(x, yes, weights) for x, yes in zip(scores.T, truth.T, strict=True)]))


def _area(scores: np.ndarray, truth: np.ndarray, weights: np.ndarray) -> float:
    order = np.argsort(-scores, kind="stable")
    scores, truth, weights = scores[order], truth[order], weights[order]
    last = np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1)  # of each run of equal scores
    hits = np.append(0, np.cumsum(weights * truth)[last])
    misses = np.append(0, np.cumsum(weights * ~truth)[last])
    if hits[-1] <= 0 or misses[-1] <= 0:
        return float("nan")
    return float(np.sum(np.diff(misses) * (hits[1:] + hits[:-1]) / 2) / (hits[-1] * misses[-1]))

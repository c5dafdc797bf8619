"""What follows from the scores `[N, width]` of classes: choices and probabilities."""

from __future__ import annotations

import numpy as np

from onward.head.ending import PROBABILITY, SIGMOID


def choose(scores: np.ndarray, link: str, *, multilabel: bool) -> np.ndarray:
    """The number of the class of each row, or yes and no for each label."""
    if multilabel:
        return (scores > border(link)).astype(np.int64)
    return (scores[:, 0] > border(link)).astype(np.int64) if scores.shape[1] == 1 else scores.argmax(1)


def border(link: str) -> float:
    """What a single score is compared with."""
    return 0.5 if link == PROBABILITY else 0.0


def clearness(scores: np.ndarray, link: str) -> np.ndarray:
    """How far the choice of a class is from another one."""
    if scores.shape[1] == 1:
        return np.abs(scores[:, 0] - border(link))
    ordered = np.sort(scores, axis=1)
    return np.asarray(ordered[:, -1] - ordered[:, -2])


def decision(scores: np.ndarray, link: str, *, multilabel: bool) -> np.ndarray:
    """Scores whose largest one decides; of two classes one, above 0 for the second."""
    if link == PROBABILITY:
        scores = (
            _logarithm(scores) if scores.shape[1] > 1 or multilabel else _logarithm(scores) - _logarithm(1 - scores)
        )
    if multilabel or scores.shape[1] > 2:
        return scores
    return scores[:, 0] if scores.shape[1] == 1 else scores[:, 1] - scores[:, 0]


def log_probabilities(scores: np.ndarray, link: str, *, multilabel: bool) -> np.ndarray:
    """The logarithms of the probabilities of all classes, finite wherever scores are."""
    alone = scores.shape[1] == 1 and not multilabel
    if link == PROBABILITY:
        return _logarithm(np.hstack([1 - scores, scores]) if alone else scores)
    if link != SIGMOID:
        return _normalised(scores)
    yes = -np.logaddexp(0, -scores)
    if multilabel:
        return yes
    return np.hstack([-np.logaddexp(0, scores), yes]) if alone else _normalised(yes)


def are_probabilities(values: np.ndarray, *, exclusive: bool) -> bool:
    """Whether numbers look like probabilities, of which those of a row have the sum 1 if classes are exclusive."""
    inside = values.size > 0 and bool(((values >= 0) & (values <= 1)).all())
    return inside and (not exclusive or values.shape[1] == 1 or np.allclose(values.sum(1), 1, atol=1e-3))


def _normalised(logarithms: np.ndarray) -> np.ndarray:
    return np.asarray(logarithms - np.logaddexp.reduce(logarithms, axis=1, keepdims=True))


def _logarithm(x: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(x))

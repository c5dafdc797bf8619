"""What a metric is: a number for predictions and targets, over a whole set that comes in batches."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, ClassVar, TypeVar

import numpy as np

from onward.errors import OnwardError

T = TypeVar("T")


class Output(str, Enum):
    """What the numbers are that a model returns."""

    # Scores of classes `[N, C, ...]`, one of which is right.
    LOGITS = "logits"
    PROBABILITIES = "probabilities"
    LOG_PROBABILITIES = "log_probabilities"
    # Scores of yes and no, in the shape of the target: one question `[N]` or `[N, 1]`, or several `[N, L]`.
    BINARY_LOGITS = "binary_logits"
    BINARY_PROBABILITIES = "binary_probabilities"
    MARGINS = "margins"  # the same, with targets -1 and 1
    VALUES = "values"

    @property
    def is_binary(self) -> bool:
        return self in (Output.BINARY_LOGITS, Output.BINARY_PROBABILITIES, Output.MARGINS)

    @property
    def threshold(self) -> float:
        """Above which a score of yes and no is a yes."""
        return 0.5 if self in (Output.PROBABILITIES, Output.BINARY_PROBABILITIES, Output.VALUES) else 0.0


_OF_LOSS = {
    **dict.fromkeys(("cross_entropy", "soft_cross_entropy", "focal", "multi_margin"), Output.LOGITS),
    **dict.fromkeys(("nll", "kl_div", "ctc"), Output.LOG_PROBABILITIES),
    **dict.fromkeys(("bce_with_logits", "binary_focal"), Output.BINARY_LOGITS),
    **dict.fromkeys(("hinge", "soft_margin"), Output.MARGINS),
    "bce": Output.BINARY_PROBABILITIES,
    **dict.fromkeys(("mse", "l1", "smooth_l1", "huber", "poisson_nll", "gaussian_nll"), Output.VALUES),
}
_OF_ACTIVATION = {
    "Softmax": Output.PROBABILITIES,
    "LogSoftmax": Output.LOG_PROBABILITIES,
    "Sigmoid": Output.BINARY_PROBABILITIES,
}


def output_of(loss: str | None, activation: str | None = None) -> Output:
    """What a model returns that is trained with a loss of that name, or that ends in an activation; else logits."""
    return known_output(loss) or _OF_ACTIVATION.get(activation or "", Output.LOGITS)


def known_output(loss: str | None) -> Output | None:
    """What a loss of that name takes, if it is one of `onward.losses` that says so."""
    return _OF_LOSS.get(loss or "")


class Metric(ABC):
    """A metric in the course of one evaluation: `start`, `update` for each batch, `result`.

    Args:
        name: its key in a History.
    """

    higher_is_better: ClassVar[bool | None] = None

    def __init__(self, name: str) -> None:
        self.name = name
        self.start()

    @abstractmethod
    def start(self) -> None:
        """Forget what has been seen."""

    @abstractmethod
    def update(self, prediction: Any, target: Any, weight: Any = None) -> None:
        """Take a batch, with a weight for each row or none."""

    @abstractmethod
    def result(self) -> float:
        """The metric of all that has been seen; NaN where it is not defined."""

    def merge(self, parts: Sequence[Any]) -> None:
        """Take what others of the same kind have seen: parts of the same batches, in several processes."""
        raise OnwardError(
            f"the metric {self.name} ({type(self).__name__}) cannot be put together from what several processes have "
            "seen: give it a method merge(parts), which takes what other metrics of its kind have seen; or use a "
            "function of (prediction, target)"
        )

    def __repr__(self) -> str:
        return f"<metric {self.name}>"


def in_turn(lists: Iterable[Sequence[T]]) -> list[T]:
    """The first items of all lists, then the second ones, and so on."""
    missing = object()
    rounds = itertools.zip_longest(*lists, fillvalue=missing)
    return [item for each in rounds for item in each if item is not missing]  # type: ignore[misc]


def flat_weight(weight: Any, shape: Sequence[int]) -> np.ndarray | None:
    """Weights of rows, repeated for each element of arrays whose first axis is that of the rows."""
    if weight is None:
        return None
    weights = np.asarray(weight, np.float64).reshape(-1)
    if len(weights) != shape[0]:
        raise OnwardError(f"there are {len(weights)} weights for {shape[0]} rows")
    return np.repeat(weights, int(np.prod(shape[1:], dtype=np.int64)))


def ratio(part: float | np.ndarray, whole: float | np.ndarray, otherwise: float = np.nan) -> np.ndarray:
    """part / whole, and `otherwise` where there is nothing to divide by."""
    part, whole = np.asarray(part, np.float64), np.asarray(whole, np.float64)
    return np.divide(part, whole, out=np.full(whole.shape, otherwise), where=whole != 0)

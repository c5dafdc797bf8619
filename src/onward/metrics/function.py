"""Any function of predictions and targets as a metric: it gets the whole set at once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onward.errors import OnwardError
from onward.metrics.base import Metric, in_turn

_WEIGHT = "sample_weight"


class FunctionMetric(Metric):
    """``function(prediction, target)`` or ``function(prediction, target, sample_weight)`` over the whole set.

    Functions whose first parameter is called `y_true`, as those of scikit-learn, get the target first. An attribute
    `higher_is_better` of the function says which of two results is the better one.
    """

    def __init__(self, function: Callable[..., Any], name: str | None = None) -> None:
        self._function = function
        names = _parameters(function)
        self._target_first = bool(names) and names[0] == "y_true"
        self._takes_weight = _WEIGHT in names or (len(names) == 3 and names[2] in ("weight", "weights", "w"))
        super().__init__(name or getattr(function, "__name__", None) or type(function).__name__)

    @property
    def higher_is_better(self) -> bool | None:  # type: ignore[override]
        return getattr(self._function, "higher_is_better", None)

    def start(self) -> None:
        self._seen: list[tuple[np.ndarray, np.ndarray, np.ndarray | None]] = []

    def update(self, prediction: Any, target: Any, weight: Any = None) -> None:
        # Copies: the arrays of a batch may be used again for the next.
        self._seen.append((np.array(prediction), np.array(target), None if weight is None else np.array(weight)))

    def merge(self, parts: Sequence[Any]) -> None:
        self._seen.extend(in_turn(part._seen for part in parts))

    def result(self) -> float:
        if not self._seen:
            return float("nan")
        predictions, targets, weights = zip(*self._seen, strict=True)
        prediction, target = _joined(predictions, self.name), _joined(targets, self.name)
        given: dict[str, Any] = {}
        if any(weight is not None for weight in weights):
            if not self._takes_weight:
                raise OnwardError(
                    f"the metric {self.name} takes no weights of rows, but there are some; give it a parameter "
                    "`sample_weight`"
                )
            given = {self._weight_name(): np.concatenate(weights)}
        first, second = (target, prediction) if self._target_first else (prediction, target)
        value = np.asarray(self._function(first, second, **given))
        if value.size != 1 or value.dtype.kind not in "fiub":
            raise OnwardError(f"the metric {self.name} returned {value!r:.80}; a metric is one number")
        return float(value.reshape(()))

    def _weight_name(self) -> str:
        names = _parameters(self._function)
        return _WEIGHT if _WEIGHT in names else names[2]


def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # some functions written in C do not say
        return []


def _joined(arrays: tuple[np.ndarray, ...], name: str) -> np.ndarray:
    if len({array.shape[1:] for array in arrays}) > 1:
        raise OnwardError(
            f"the metric {name} takes the whole set as one array, but batches have rows of different shapes: "
            f"{sorted({array.shape[1:] for array in arrays})}"
        )
    return np.concatenate(arrays) if arrays[0].ndim else np.stack(arrays)

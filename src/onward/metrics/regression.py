"""Metrics of numbers: sums in float64, of each column where predictions are `[N, D]`, which are averaged in the end."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from onward.errors import OnwardError
from onward.metrics.base import Metric, flat_weight, ratio


class _Columns(Metric):
    """A metric of the columns of predictions and targets of one shape; of all elements, unless that is `[N, D]`."""

    higher_is_better: ClassVar[bool | None] = False

    def start(self) -> None:
        self._weight = 0.0
        self._rows = 0
        self._width: int | None = None

    def update(self, prediction: Any, target: Any, weight: Any = None) -> None:
        x, y = _same_shape(np.asarray(prediction), np.asarray(target))
        self._check_width(x.shape[1])
        if not len(x):
            return
        weights = flat_weight(weight, (len(np.asarray(prediction)), len(x) // max(len(np.asarray(prediction)), 1)))
        self._width = x.shape[1]
        self._rows += len(x)
        self._weight += float(len(x) if weights is None else weights.sum())
        self.add(x, y, weights)

    @abstractmethod
    def add(self, x: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> None: ...

    def merge(self, parts: Sequence[Any]) -> None:
        for part in parts:
            self._check_width(part._width)
            self._width = part._width or self._width
            self._rows += part._rows
            self._weight += part._weight

    def _check_width(self, width: int | None) -> None:
        if None not in (width, self._width) and width != self._width:
            raise OnwardError(f"a batch has {width} columns of predictions, those before it had {self._width}")


class _MeanOfErrors(_Columns):
    """The mean of a function of prediction and target."""

    def start(self) -> None:
        super().start()
        self._sum: np.ndarray | float = 0.0

    @abstractmethod
    def error(self, x: np.ndarray, y: np.ndarray) -> np.ndarray: ...

    def add(self, x: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> None:
        self._sum = self._sum + _sum(self.error(x, y), weight)

    def merge(self, parts: Sequence[Any]) -> None:
        super().merge(parts)
        for part in parts:
            self._sum = self._sum + part._sum

    def means(self) -> np.ndarray:
        return ratio(self._sum, np.full(np.shape(self._sum), self._weight))

    def result(self) -> float:
        return float(np.mean(self.means()))


class MAE(_MeanOfErrors):
    """The mean of |prediction - target|."""

    def error(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.asarray(np.abs(x - y))


class MSE(_MeanOfErrors):
    """The mean of (prediction - target)^2."""

    def error(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.asarray((x - y) ** 2)


class RMSE(MSE):
    """The square root of the mean of squares, averaged over columns."""

    def result(self) -> float:
        return float(np.mean(np.sqrt(self.means())))


class MAPE(_MeanOfErrors):
    """The mean of |prediction - target| / |target|, a share and not per cent; the divisor is at least 2^-52."""

    def error(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.asarray(np.abs(x - y) / np.maximum(np.abs(y), np.finfo(np.float64).eps))


class R2(_Columns):
    """1 - sum (y - x)^2 / sum (y - mean y)^2; for a constant target 1 if it is met, else 0. It needs two rows."""

    higher_is_better: ClassVar[bool | None] = True

    def start(self) -> None:
        super().start()
        self._first: np.ndarray | None = None
        self._residual: np.ndarray | float = 0.0
        self._mean: np.ndarray | float = 0.0  # of the difference from the first row, which keeps digits
        self._spread: np.ndarray | float = 0.0
        self._counted = 0.0

    def add(self, x: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> None:
        if self._first is None:
            self._first = y[0].copy()
        self._residual = self._residual + _sum((y - x) ** 2, weight)
        shifted = y - self._first
        count = float(len(y) if weight is None else weight.sum())
        if count == 0:
            return
        mean = _sum(shifted, weight) / count
        self._combine(count, mean, _sum((shifted - mean) ** 2, weight))

    def _combine(self, count: float, mean: np.ndarray, spread: np.ndarray) -> None:
        """Chan et al. 1983: the spread of two sets from their means and spreads."""
        total = self._counted + count
        self._spread = self._spread + spread + (mean - self._mean) ** 2 * (self._counted * count / total)
        self._mean = self._mean + (mean - self._mean) * (count / total)
        self._counted = total

    def merge(self, parts: Sequence[Any]) -> None:
        super().merge(parts)
        for part in parts:
            self._residual = self._residual + part._residual
            if self._first is None:
                self._first = part._first
            if part._counted:
                self._combine(part._counted, part._mean + (part._first - self._first), part._spread)

    def result(self) -> float:
        if self._rows < 2:
            return float("nan")
        residual, spread = np.asarray(self._residual), np.asarray(self._spread)
        return float(
            np.mean(np.where(spread == 0, np.where(residual == 0, 1.0, 0.0), 1 - ratio(residual, spread, 0.0)))
        )


def _sum(each: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    return np.asarray(each.sum(axis=0) if weight is None else weight @ each)


def _same_shape(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both as float64 `[rows, columns]`; an axis of size 1 at the end may be missing in one of them."""
    if x.shape != y.shape:
        shapes = [array.shape[:-1] if array.ndim > 1 and array.shape[-1] == 1 else array.shape for array in (x, y)]
        if shapes[0] != shapes[1]:
            raise OnwardError(
                f"predictions of shape {list(x.shape)} and targets of shape {list(y.shape)} do not belong together"
            )
        x, y = x.reshape(shapes[0]), y.reshape(shapes[1])
    columns = x.shape[1] if x.ndim == 2 else 1
    return x.astype(np.float64).reshape(-1, columns), y.astype(np.float64).reshape(-1, columns)

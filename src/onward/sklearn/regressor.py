"""A model that predicts numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from sklearn.base import RegressorMixin, _fit_context
from sklearn.metrics import r2_score
from sklearn.utils.validation import column_or_1d

from onward.head.ending import Head, read_numbers
from onward.sklearn import perceptron
from onward.sklearn.error import EstimatorError
from onward.sklearn.estimator import OnnxEstimator, Task
from onward.sklearn.network import Network
from onward.sklearn.objective import half_squared_error


class OnnxRegressor(RegressorMixin, OnnxEstimator):
    """Any ONNX model that predicts numbers, as an estimator; without one, it makes a perceptron.

    Parameters are those of scikit-learn's MLPRegressor, and besides:

    Args:
        model: a file, bytes or a ModelProto: fine-tuned from the weights that it has.
        loss: a name of `onward.losses`, or a function ``(op, prediction, target)``; half the squared error by default.
        solver: "adam" and "sgd" as scikit-learn has them, or any other name of `onward.optim`.
        output: the output (or inner value) with the predictions, where the model has several.
        trainable: names and patterns of the parameters to train; `frozen` of those to leave as they are.
        dtype: of a model that is made; that of X by default.
    """

    def _read(self, model: Network) -> Head:
        return read_numbers(model.prepared, self.output)

    def _make(self, layers: list[perceptron.Layer]) -> onnx.ModelProto:
        return perceptron.regressor(layers, self.activation)

    def _understand(self, y: np.ndarray, head: Head | None, *, first: bool, incremental: bool) -> np.ndarray:
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        if y.dtype.kind not in "biuf":
            y = y.astype(np.float64)
        width = 1 if y.ndim == 1 else y.shape[1]
        if first:
            self.n_outputs_ = width
        elif width != self.n_outputs_:
            raise EstimatorError(f"y has {width} columns, but the model was fitted to {self.n_outputs_}")
        return y

    @property
    def _width(self) -> int:
        return self.n_outputs_

    def _task(self, head: Head, y: np.ndarray) -> Task:
        shape = (len(y),) if head.rank == 1 else (len(y), self.n_outputs_, *[1] * (head.rank - 2))
        loss = half_squared_error if self.loss in (None, "squared_error") else self.loss
        return Task(loss, y.reshape(shape).astype(head.dtype, copy=False))

    def _correction(self, head: Head) -> Any:
        """scikit-learn follows the slope of the sum over all targets of a row, and reports their mean."""
        if self.n_outputs_ == 1 or self.loss not in (None, "squared_error"):
            return None

        def correction(scores: np.ndarray, target: np.ndarray, weight: np.ndarray | None) -> float:
            errors = np.square(scores - target).reshape(len(scores), -1).sum(1) / 2
            total = 1.0 if weight is None else weight.sum()
            whole = errors.mean() if weight is None else (weight @ errors / total if total else 0.0)
            return float(whole) * (1 / self.n_outputs_ - 1)

        return correction

    def _measure(self, scores: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> float:
        numbers = self._numbers(scores)
        return float(r2_score(y, numbers, sample_weight=weight)) if np.isfinite(numbers).all() else np.nan

    def _numbers(self, scores: np.ndarray) -> np.ndarray:
        return scores.reshape(len(scores)) if self.n_outputs_ == 1 else scores.reshape(len(scores), -1)

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> OnnxRegressor:  # noqa: N803
        """Train for one pass over rows `X`; the next call goes on from there."""
        return self._fit(X, y, sample_weight, incremental=True)

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """The numbers that the model predicts: `[N]`, or `[N, targets]` if it was fitted to several."""
        return self._numbers(self._scores(X))

"""Values from the inside of a model, as features for other estimators."""

from __future__ import annotations

import os
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx_ir as ir
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from onward.errors import OnwardError
from onward.head.search import last_layer
from onward.sklearn import perceptron
from onward.sklearn.error import EstimatorError
from onward.sklearn.estimator import OnnxEstimator
from onward.sklearn.learner import network
from onward.sklearn.network import Network, Predictor, load
from onward.sklearn.parameters import Constraints


class OnnxFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """A transformer that gives any value of a model, as rows of features; nothing is trained.

    Args:
        model: a file, bytes, a ModelProto, or a fitted `OnnxClassifier` or `OnnxRegressor`. Without one, the features
            are those of a perceptron with random weights.
        hidden_layer_sizes: of the random perceptron, as are `activation`, `random_state` and `dtype`.
        output: the name of the value; by default what the last layer takes, or the output of the random perceptron.
    """

    _parameter_constraints: ClassVar[Constraints] = {
        "model": [str, bytes, os.PathLike, onnx.ModelProto, OnnxEstimator, None],
        "hidden_layer_sizes": ["array-like", Interval(Integral, 1, None, closed="left")],
        "activation": [StrOptions(set(perceptron.ACTIVATIONS))],
        "output": [str, None],
        "random_state": ["random_state"],
        "dtype": [StrOptions({"float32", "float64"}), None],
    }

    def __init__(
        self,
        model: Any = None,
        hidden_layer_sizes: Any = (100,),
        activation: str = "relu",
        *,
        output: str | None = None,
        random_state: Any = None,
        dtype: str | None = None,
    ) -> None:
        self.model = model
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.output = output
        self.random_state = random_state
        self.dtype = dtype

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any = None) -> OnnxFeatures:  # noqa: N803
        """See that the model takes rows like those of `X`."""
        given = None if self.model is None else _proto(self.model).SerializeToString()
        X = self._validated(X, None if given is None else network(given), reset=True)  # noqa: N806
        self._model = self._drawn(X) if given is None else given
        self._predictor: Predictor | None = None
        known = network(self._model)
        if known.features not in (None, self.n_features_in_):
            raise EstimatorError(f"X has {self.n_features_in_} features, but the model takes {known.features}")
        self.output_ = self.output or ("features" if given is None else _before_last_layer(known.prepared))
        self._n_features_out = self._values(X[:1]).shape[1]
        return self

    def _drawn(self, X: Any) -> bytes:  # noqa: N803
        random = check_random_state(self.random_state)
        sizes = [X.shape[1], *perceptron.hidden_sizes(self.hidden_layer_sizes)]
        layers = perceptron.initial_layers(sizes, self.activation, random, np.dtype(self.dtype or X.dtype))
        return perceptron.features(layers, self.activation).SerializeToString()

    def transform(self, X: Any) -> np.ndarray:  # noqa: N803
        """The value for each row, `[N, features]`."""
        check_is_fitted(self)
        return self._values(self._validated(X, network(self._model), reset=False))

    def _values(self, X: Any) -> np.ndarray:  # noqa: N803
        if getattr(self, "_predictor", None) is None:
            self._predictor = network(self._model).predictor([self.output_], {})
        assert self._predictor is not None
        values = self._predictor(X)[self.output_]
        return values.reshape(len(values), -1)

    def _validated(self, X: Any, model: Network | None, *, reset: bool) -> Any:  # noqa: N803
        rows = X if model is None else model.flat(X)
        return validate_data(self, rows, accept_sparse=["csr", "csc"], dtype=(np.float64, np.float32), reset=reset)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_predictor"}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"] if self.model is None and not self.dtype else []
        return tags


def _proto(model: Any) -> onnx.ModelProto:
    return model.model_ if isinstance(model, OnnxEstimator) else load(model)


def _before_last_layer(model: ir.Model) -> str:
    """The name of the value that the last layer of a model takes."""
    try:
        value = last_layer(model.graph).node.inputs[0]
    except OnwardError as error:
        raise EstimatorError(f"{error}. Or say which value is wanted: output='...'") from error
    if value is None or value.is_graph_input():
        raise EstimatorError("the model has one layer only, which takes X; say which value is wanted: output='...'")
    return value.name or ""

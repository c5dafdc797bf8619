"""What an estimator is after training: a model and its weights, which predict, are pickled and exported."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from sklearn.utils.validation import check_is_fitted, validate_data

from onward.head.ending import Head
from onward.runtime.files import write_bytes
from onward.sklearn.learner import Learner, network
from onward.sklearn.network import Network
from onward.sklearn.parameters import Parameters


@dataclass
class Live:
    """What can be made again from the rest, and is left out of pickles."""

    network: Network
    learner: Learner | None = None
    settings: Any = None  # that the learner was made for
    predictor: Any = None


class Fitted(Parameters):
    """A trained model.

    Attributes of a fitted one: `_model` are the bytes of the model that was given or made, `_weights` the arrays that
    training changed, by name, `_head` says what its scores are, and `_memory` is what the optimizer remembers.
    """

    _model: bytes
    _weights: dict[str, np.ndarray]
    _head: Head
    _memory: dict[str, Any] | None
    _live: Live | None

    @property
    def _alive(self) -> Live:
        """What is made of the fitted model when it is first needed."""
        live = getattr(self, "_live", None)
        if live is None:
            made = network(self._model)
            live = self._live = Live(made)
        return live

    def _scores(self, X: Any) -> np.ndarray:  # noqa: N803
        """What the loss takes, for rows that were not checked yet."""
        check_is_fitted(self)
        live = self._alive
        X = validate_data(  # noqa: N806
            self, live.network.flat(X), accept_sparse=["csr", "csc"], dtype=(np.float64, np.float32), reset=False
        )
        if live.predictor is None:
            live.predictor = live.network.predictor([self._head.scores], self._weights)
        scores: np.ndarray = live.predictor(X)[self._head.scores]
        return scores

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "n_iter_")

    # The model ------------------------------------------------------------------------------------------------------

    @property
    def model_(self) -> onnx.ModelProto:
        """The trained model: that which was given, with other weights."""
        check_is_fitted(self)
        return self._alive.network.with_weights(self._weights)

    def to_onnx(self) -> onnx.ModelProto:
        """The trained model, with the inputs and outputs of the one that was given."""
        return self.model_

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the trained model to a file."""
        write_bytes(path, self.model_.SerializeToString())

    @property
    def coefs_(self) -> list[np.ndarray]:
        """The weights of the layers, where the model was made of `hidden_layer_sizes`."""
        return self._layers("weight")

    @property
    def intercepts_(self) -> list[np.ndarray]:
        """The biases of the layers, where the model was made of `hidden_layer_sizes`."""
        return self._layers("bias")

    def _layers(self, kind: str) -> list[np.ndarray]:
        check_is_fitted(self)
        if self.model is not None:
            raise AttributeError(f"{type(self).__name__} of a model that was given has no layers; see `model_`")
        count = sum(name.endswith(f".{kind}") for name in self._weights)
        return [self._weights[f"layer{index}.{kind}"] for index in range(count)]

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_live"}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

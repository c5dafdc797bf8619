"""Weights of an estimator as onnxruntime's own values, and the velocities that belong to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from onward.onnxcustom.training._base_estimator import BaseEstimator
from onward.onnxcustom.training._convert import in_type_of
from onward.onnxcustom.training._forward_backward import OrtGradientForwardBackwardFunction
from onward.onnxcustom.training.excs import NotFittedError, WrongTypeError, WrongValueError
from onward.runtime.values import as_value, value_from_array

# Kind of state -> where it is kept.
STATES = {"weight": "train_state_", "grad": "train_grad_state_"}


class EstimatorWithWeights(BaseEstimator):
    """An estimator that has weights, and maybe velocities."""

    weights_to_train: list[str]
    train_function_: OrtGradientForwardBackwardFunction
    statistics_: dict[str, np.ndarray]  # the running statistics of normalisations, by name

    def get_full_state(self, kind: Any = "weight") -> list[Any]:
        """The weights ('weight') or velocities ('grad') after one None for every other input of the graph.

        While a batch is learned from, it is in the place of that None. A list of kinds gives a list of lists.
        """
        if isinstance(kind, list):
            return [self.get_full_state(each) for each in kind]
        if kind not in STATES:
            raise WrongValueError(f"kind={kind!r} is not known; use one of {', '.join(map(repr, STATES))}")
        if not hasattr(self, STATES[kind]):
            raise NotFittedError("there are no weights yet, or no velocities: call fit first")
        return getattr(self, STATES[kind])

    def get_state(self, kind: str = "weight") -> list[Any]:
        """The weights ('weight') or velocities ('grad') as onnxruntime's own values, in the order of the names."""
        state = self.get_full_state(kind)
        return state[len(state) - len(self.weights_to_train) :]

    def set_state(
        self, state: Sequence[Any], check_trained: bool = True, kind: str = "weight", zero: bool = False
    ) -> None:
        """Set weights or velocities: arrays, OrtValues of either kind, or None for other inputs.

        Args:
            check_trained: whether this is an error before `fit`.
            zero: whether to take only their types and shapes, and 0 for every number.
        """
        if kind not in STATES:
            raise WrongValueError(f"kind={kind!r} is not known; use one of {', '.join(map(repr, STATES))}")
        if check_trained and not hasattr(self, "train_session_"):
            raise NotFittedError("there is nothing to set yet: call fit first")
        # A full state begins with the other inputs, which are not kept.
        count = len(self.weights_to_train)
        given = list(state)[len(state) - count :] if len(state) == count + self._data_inputs() else list(state)
        if len(given) != count or any(tensor is None for tensor in given):
            held = sum(tensor is not None for tensor in given)
            raise WrongValueError(f"there are {count} weights; given were {held}")
        values = [self._value(*pair, zero) for pair in zip(self.weights_to_train, given, strict=True)]
        setattr(self, STATES[kind], [None] * self._data_inputs() + values)

    def _data_inputs(self) -> int:
        """How many inputs the graph has besides weights."""
        weights = {tensor.name for tensor in self.model_onnx.graph.initializer}
        return sum(value.name not in weights for value in self.model_onnx.graph.input)

    def _value(self, name: str, tensor: Any, zero: bool) -> Any:
        """A tensor for a weight, with memory of its own, which steps may change."""
        value = as_value(tensor, self.device)
        if value is None:
            raise WrongTypeError(f"the state of {name!r} is {type(tensor).__name__}, no array and no OrtValue")
        array = value.numpy()
        for weight in self.model_onnx.graph.initializer:
            if weight.name == name:
                if value.shape() != list(weight.dims):
                    raise WrongValueError(
                        f"the state of {name!r} has shape {value.shape()}, and the weight {list(weight.dims)}"
                    )
                array = in_type_of(array, onnx.helper.tensor_dtype_to_np_dtype(weight.data_type))
        return value_from_array(np.zeros_like(array) if zero else array, self.device)

    @property
    def trained_coef_(self) -> dict[str, Any]:
        """The weights by name."""
        return dict(zip(self.weights_to_train, self.get_state(), strict=True))

    def get_trained_onnx(self, model: onnx.ModelProto | None = None) -> onnx.ModelProto:
        """The graph with the trained weights and running statistics, or `model` with them."""
        target = self.model_onnx if model is None else model
        names = {tensor.name for tensor in target.graph.initializer}
        statistics = {name: array for name, array in getattr(self, "statistics_", {}).items() if name in names}
        return self._get_trained_onnx({**self.trained_coef_, **statistics}, model)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        for kind, attribute in STATES.items():
            if hasattr(self, attribute):
                state[attribute] = [np.array(value.numpy()) for value in self.get_state(kind)]
        return state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        saved = {kind: state[attribute] for kind, attribute in STATES.items() if attribute in state}
        super().__setstate__({name: value for name, value in state.items() if name not in STATES.values()})
        for kind, arrays in saved.items():
            self.set_state(arrays, check_trained=False, kind=kind)

    def _restore_statistics(self) -> None:
        """Continue with the running statistics of the former `fit`."""
        for name, array in getattr(self, "statistics_", {}).items():
            self.train_function_.statistics_[name] = value_from_array(array, self.device)

    def _keep_statistics(self) -> None:
        """Remember the running statistics, which forward passes have changed."""
        found = self.train_function_.statistics_
        self.statistics_ = {name: np.array(value.numpy()) for name, value in found.items()}

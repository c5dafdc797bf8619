"""Penalties of weights: what they add to the loss, and how they move weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from onward.errors import OnwardError
from onward.onnxcustom.training._base_onnx_function import BaseLearningOnnx, changeable, session_of, value_on
from onward.onnxcustom.training.excs import UnsupportedError, WrongValueError
from onward.onnxcustom.utils.onnx_function import function_onnx_graph
from onward.runtime.values import run, run_into


class BaseLearningPenalty(BaseLearningOnnx):
    """A penalty of weights."""

    def penalty_loss(self, device: Any, loss: Any, *weights: Any) -> Any:
        """The loss with the penalty of all weights, one element."""
        raise UnsupportedError(f"{type(self).__name__} has no penalty_loss")

    def update_weights(self, n_bind: int, device: Any, statei: Any) -> Any:
        """Move weight number `n_bind`, in place."""
        raise UnsupportedError(f"{type(self).__name__} has no update_weights")

    @staticmethod
    def select(class_name: Any, **kwargs: Any) -> BaseLearningPenalty:
        """A penalty as it is, or one by name: None or '' for none, 'elastic' or 'l1l2', or the name of its class."""
        if isinstance(class_name, BaseLearningPenalty):
            return class_name
        for kind, names in _NAMES.items():
            if class_name in names or class_name == kind.__name__:
                return kind(**kwargs)
        known = [repr(name) for kind, names in _NAMES.items() for name in (*names, kind.__name__)]
        raise WrongValueError(f"unexpected penalty {class_name!r}; use one of {', '.join(known)}")


class NoLearningPenalty(BaseLearningPenalty):
    """No penalty."""

    def build_onnx_function(self, opset: int, device: Any, n_tensors: int, dtype: Any = np.float32) -> None:
        """Nothing to make."""

    def penalty_loss(self, device: Any, loss: Any, *weights: Any) -> Any:
        return loss

    def update_weights(self, n_bind: int, device: Any, statei: Any) -> Any:
        return statei


class ElasticLearningPenalty(BaseLearningPenalty):
    """The loss grows by l1 sum |w| + l2 sum w^2; before each step along the gradient w <- (1 - 2 l2) w - l1 sign(w).

    As in the original, neither the learning rate nor the number of rows has a part in that: useful values are small.
    """

    def __init__(self, l1: float = 0.5, l2: float = 0.5) -> None:
        self.l1 = l1
        self.l2 = l2

    def build_onnx_function(self, opset: int, device: Any, n_tensors: int, dtype: Any = np.float32) -> None:
        self._remember(opset, device, n_tensors, dtype)
        self.penalty_onnx_ = function_onnx_graph(
            "n_penalty_elastic_error",
            opset,
            dtype,
            n_tensors=n_tensors,
            loss_shape=None,
            l1_weight=self.l1,
            l2_weight=self.l2,
        )
        self.penalty_sess_ = session_of(self.penalty_onnx_, device)
        self.names_ = [value.name for value in self.penalty_onnx_.graph.input]
        self.penalty_grad_onnx_ = function_onnx_graph(
            "update_penalty_elastic_error", opset, dtype, l1=self.l1, l2=self.l2
        )
        self.penalty_grad_sess_ = session_of(self.penalty_grad_onnx_, device)

    def penalty_loss(self, device: Any, loss: Any, *weights: Any) -> Any:
        if not hasattr(self, "penalty_sess_"):
            raise _not_built(self)
        if len(self.names_) != 1 + len(weights):
            raise OnwardError(f"the penalty was built for {len(self.names_) - 1} weights; given were {len(weights)}")
        values = [value_on(value, device, "the loss or a weight") for value in (loss, *weights)]
        return run(self.penalty_sess_, dict(zip(self.names_, values, strict=True)), ["Y"], device)[0]

    def update_weights(self, n_bind: int, device: Any, statei: Any) -> Any:
        if not hasattr(self, "penalty_grad_sess_"):
            raise _not_built(self)
        weight = changeable(statei, "the weight")
        return run_into(self.penalty_grad_sess_, {"X": weight}, {"Y": weight}, device)[0]


_NAMES: dict[type[BaseLearningPenalty], tuple[str | None, ...]] = {
    NoLearningPenalty: (None, ""),
    ElasticLearningPenalty: ("elastic", "l1l2"),
}


def _not_built(penalty: BaseLearningPenalty) -> OnwardError:
    return OnwardError(f"call build_onnx_function of this {type(penalty).__name__} first")

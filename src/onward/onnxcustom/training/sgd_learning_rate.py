"""Learning rates, and how weights move along gradients."""

from __future__ import annotations

import numbers
from collections.abc import Iterator
from typing import Any

import numpy as np

from onward.errors import OnwardError
from onward.onnxcustom.training._base_onnx_function import BaseLearningOnnx, changeable, dtype_of, session_of, value_on
from onward.onnxcustom.training.excs import UnsupportedError, WrongValueError
from onward.onnxcustom.utils.onnx_function import function_onnx_graph
from onward.runtime.values import run_into, value_from_array

SCHEDULES = ("invscaling", "optimal", "constant")


class BaseLearningRate(BaseLearningOnnx):
    """A learning rate that changes after every pass over the data."""

    def init_learning_rate(self) -> BaseLearningRate:
        """Start: the first rate."""
        raise UnsupportedError(f"{type(self).__name__} has no init_learning_rate")

    def update_learning_rate(self, t: int) -> BaseLearningRate:
        """The rate after pass number `t`."""
        raise UnsupportedError(f"{type(self).__name__} has no update_learning_rate")

    @property
    def value(self) -> float:
        """The present rate."""
        raise UnsupportedError(f"{type(self).__name__} has no value")

    @property
    def needs_grad(self) -> bool:
        """Whether an update needs what is left of former gradients."""
        raise UnsupportedError(f"{type(self).__name__} does not say whether it needs former gradients")

    def update_weights(
        self, n_bind: int, device: Any, statei: Any, gradienti: Any, batch_size: int, velocity: Any = None
    ) -> Any:
        """Move one weight along its gradient, in place.

        Args:
            n_bind: the number of the weight.
            statei: the weight.
            gradienti: the gradient of a loss that is a sum over `batch_size` rows.
            velocity: what is left of former gradients; changed in place.
        """
        raise UnsupportedError(f"{type(self).__name__} has no update_weights")

    def loop(self, n: int = 1000) -> Iterator[float]:
        """The first `n` rates."""
        self.init_learning_rate()
        for i in range(n):
            yield self.value
            self.update_learning_rate(i + 1)

    @staticmethod
    def select(class_name: Any, **kwargs: Any) -> BaseLearningRate:
        """A learning rate as it is, a number as that of `LearningRateSGD`, or one by the name of its class.

        Names: 'SGD' or 'LearningRateSGD', 'SGDNesterov', 'Nesterov' or 'LearningRateSGDNesterov'.
        """
        if isinstance(class_name, BaseLearningRate):
            return class_name
        if isinstance(class_name, numbers.Real) and not isinstance(class_name, bool):
            return LearningRateSGD(float(class_name), **kwargs)
        for kind, names in _NAMES.items():
            if class_name in names or class_name == kind.__name__:
                return kind(**kwargs)
        known = [name for kind, names in _NAMES.items() for name in (*names, kind.__name__)]
        raise WrongValueError(f"unexpected learning rate {class_name!r}; use a number or one of {', '.join(known)}")


class LearningRateSGD(BaseLearningRate):
    """w <- w - value / batch_size g, with the rates of scikit-learn's SGDRegressor.

    Args:
        eta0: the first rate.
        alpha: how soon 'optimal' falls.
        power_t: the exponent of 'invscaling'.
        learning_rate: 'constant': eta0; 'invscaling': eta0 / (t + 1)^power_t; 'optimal': C / (alpha (T0 + t)), where
            T0 = 1 / (e alpha), e = a / max(1, 2 (1 + a)), a = alpha^(-1/4), and C is such that it starts at eta0.
    """

    def __init__(
        self, eta0: float = 0.01, alpha: float = 0.0001, power_t: float = 0.25, learning_rate: str = "invscaling"
    ) -> None:
        if learning_rate not in SCHEDULES:
            raise WrongValueError(f"learning_rate={learning_rate!r} is not known; use one of {', '.join(SCHEDULES)}")
        self.eta0 = eta0
        self.alpha = alpha
        self.power_t = power_t
        self.learning_rate = learning_rate
        self.value_: float | None = None

    @property
    def value(self) -> float:
        if self.value_ is None:
            raise OnwardError("there is no learning rate before init_learning_rate was called")
        return self.value_

    @property
    def needs_grad(self) -> bool:
        return False

    def __repr_extended__(self) -> str:
        return f", value={self.value_!r}"

    def init_learning_rate(self) -> LearningRateSGD:
        self.value_ = self.eta0
        return self

    def update_learning_rate(self, t: int) -> LearningRateSGD:
        if self.learning_rate == "invscaling":
            self.value_ = self.eta0 / (t + 1) ** self.power_t
        elif self.learning_rate == "optimal":
            a = self.alpha**-0.25
            start = max(1.0, 2 * (1 + a)) / (a * self.alpha)
            self.value_ = self.eta0 * start / (start + t)
        return self

    def build_onnx_function(self, opset: int, device: Any, n_tensors: int, dtype: Any = np.float32) -> None:
        self._remember(opset, device, n_tensors, dtype)
        self.axpy_onnx_ = function_onnx_graph("axpy", target_opset=opset, dtype=dtype)
        self.axpy_sess_ = session_of(self.axpy_onnx_, device)

    def update_weights(
        self, n_bind: int, device: Any, statei: Any, gradienti: Any, batch_size: int, velocity: Any = None
    ) -> Any:
        if velocity is not None:
            raise OnwardError("LearningRateSGD keeps nothing of former gradients; velocity must be None")
        if not hasattr(self, "axpy_sess_"):
            raise _not_built(self)
        weight = changeable(statei, "the weight")
        feeds = {"X1": value_on(gradienti, device, "the gradient"), "X2": weight}
        feeds["alpha"] = _number(-self.value / batch_size, weight, device)
        return run_into(self.axpy_sess_, feeds, {"Y": weight}, device)[0]


class LearningRateSGDNesterov(LearningRateSGD):
    """The same with a velocity: v <- momentum v - value / batch_size g.

    Then w <- w + v, or with `nesterov` w <- w + momentum v - value / batch_size g.
    """

    def __init__(
        self,
        eta0: float = 0.01,
        alpha: float = 0.0001,
        power_t: float = 0.25,
        learning_rate: str = "invscaling",
        momentum: float = 0.9,
        nesterov: bool = True,
    ) -> None:
        super().__init__(eta0, alpha, power_t, learning_rate)
        self.momentum = momentum
        self.nesterov = nesterov

    @property
    def needs_grad(self) -> bool:
        return True

    def build_onnx_function(self, opset: int, device: Any, n_tensors: int, dtype: Any = np.float32) -> None:
        self._remember(opset, device, n_tensors, dtype)
        name = "axpyw2" if self.nesterov else "axpyw"
        self.axpyw_onnx_ = function_onnx_graph(name, target_opset=opset, dtype=dtype)
        self.axpyw_sess_ = session_of(self.axpyw_onnx_, device)

    def update_weights(
        self, n_bind: int, device: Any, statei: Any, gradienti: Any, batch_size: int, velocity: Any = None
    ) -> Any:
        if velocity is None:
            raise OnwardError("LearningRateSGDNesterov needs a velocity, a tensor like the weight that starts at 0")
        if not hasattr(self, "axpyw_sess_"):
            raise _not_built(self)
        weight, velocity = changeable(statei, "the weight"), changeable(velocity, "the velocity")
        feeds = {"X1": value_on(gradienti, device, "the gradient"), "X2": weight, "G": velocity}
        feeds["alpha"] = _number(-self.value / batch_size, weight, device)
        feeds["beta"] = _number(self.momentum, weight, device)
        return run_into(self.axpyw_sess_, feeds, {"Y": weight, "Z": velocity}, device)


_NAMES: dict[type[LearningRateSGD], tuple[str, ...]] = {
    LearningRateSGD: ("SGD",),
    LearningRateSGDNesterov: ("SGDNesterov", "Nesterov"),
}


def _number(value: float, like: Any, device: Any) -> Any:
    return value_from_array(np.array([value], dtype_of(like)), device)


def _not_built(rate: BaseLearningRate) -> OnwardError:
    return OnwardError(f"call build_onnx_function of this {type(rate).__name__} first")

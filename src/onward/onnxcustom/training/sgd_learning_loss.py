"""Losses of predictions outside of the graph: their value, gradient, and value for each row."""

from __future__ import annotations

import math
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import onnx

from onward.errors import OnwardError
from onward.onnxcustom.training._base_onnx_function import BaseLearningOnnx, dtype_of, session_of, value_on
from onward.onnxcustom.training._convert import binary_labels, in_type_of
from onward.onnxcustom.training.excs import WrongValueError
from onward.onnxcustom.utils.onnx_function import function_onnx_graph
from onward.onnxcustom.utils.onnx_rewriter import unreduced_onnx_loss
from onward.runtime.session import NUMPY_TYPES
from onward.runtime.values import run, value_from_array


class BaseLearningLoss(BaseLearningOnnx):
    """A loss, the sum over rows; its graph takes X1, what is expected, X2, the prediction, and maybe weights."""

    def _graph(self, opset: int, weight_name: str | None, dtype: Any) -> onnx.ModelProto:
        """The loss and its gradient."""
        raise NotImplementedError

    def build_onnx_function(self, opset: int, device: Any, weight_name: str | None, dtype: Any = np.float32) -> None:
        """Make the graphs; `weight_name` calls the input for weights of rows, None says that there are none."""
        self._remember(opset, device, weight_name, dtype)
        self.loss_grad_onnx_ = self._graph(opset, weight_name, dtype)
        self.loss_grad_sess_ = session_of(self.loss_grad_onnx_, device)
        self.build_onnx_score_function(opset, device, weight_name)

    def build_onnx_score_function(self, opset: int, device: Any, weight_name: str | None) -> None:
        """Make the graph of the loss of every row, of that of the loss."""
        if not hasattr(self, "loss_grad_onnx_"):
            raise _not_built(self)
        self.loss_score_onnx_ = unreduced_onnx_loss(self.loss_grad_onnx_, "Y")
        self.loss_score_sess_ = session_of(self.loss_score_onnx_, device)

    def prepared(self, expected: Any, dtype: np.dtype) -> np.ndarray:
        """What is expected of predictions of a type, as this loss takes it."""
        return in_type_of(expected, dtype)

    def loss_gradient(self, device: Any, expected: Any, predicted: Any, weight: Any = None) -> tuple[Any, Any]:
        """The loss, one element, and its gradient with respect to the prediction, both as OrtValues.

        Args:
            expected: what should have been predicted; like the prediction, but for the type of labels.
            weight: a weight for each row.
        """
        if not hasattr(self, "loss_grad_sess_"):
            raise _not_built(self)
        predicted = value_on(predicted, device, "the prediction")
        loss, gradient = self._run(self.loss_grad_sess_, 2, device, expected, predicted, weight)
        return loss, _reshaped(gradient, predicted.shape(), device)

    def loss_scores(self, device: Any, expected: Any, predicted: Any, weight: Any = None) -> Any:
        """The loss of every row, as an OrtValue."""
        if not hasattr(self, "loss_score_sess_"):
            raise _not_built(self)
        return self._run(self.loss_score_sess_, 1, device, expected, predicted, weight)[0]

    def _run(self, session: Any, outputs: int, device: Any, expected: Any, predicted: Any, weight: Any) -> Any:
        inputs, names = _border(session)
        predicted = _matrix(value_on(predicted, device, "the prediction"), device)
        expected = _alike(_matrix(value_on(expected, device, "what is expected"), device), predicted, device)
        feeds = {"X1": _typed(expected, inputs["X1"], device), "X2": predicted}
        if weight is not None:
            feeds[_weight_name(inputs)] = _rows(value_on(weight, device, "the weight of rows"), predicted, device)
        return run(session, feeds, names[:outputs], device)

    @staticmethod
    def select(class_name: Any, **kwargs: Any) -> BaseLearningLoss:
        """A loss as it is, or one by name: 'square_error', 'square', 'absolute_error', 'absolute', 'elastic_error',
        'elastic', 'log', 'neglog', 'logloss', or the name of its class.
        """
        if isinstance(class_name, BaseLearningLoss):
            return class_name
        for kind, names in _NAMES.items():
            if class_name in names or class_name == kind.__name__:
                return kind(**kwargs)
        known = [name for kind, names in _NAMES.items() for name in (*names, kind.__name__)]
        raise WrongValueError(f"unexpected loss {class_name!r}; use one of {', '.join(known)}")


class SquareLearningLoss(BaseLearningLoss):
    """sum w d^2 / 2 with d = expected - predicted, and its gradient -w d."""

    def _graph(self, opset: int, weight_name: str | None, dtype: Any) -> onnx.ModelProto:
        return function_onnx_graph("grad_loss_square_error", opset, dtype, weight_name, multiply=1)


class AbsoluteLearningLoss(BaseLearningLoss):
    """sum w |d| with d = expected - predicted, and its gradient -w sign(d)."""

    def _graph(self, opset: int, weight_name: str | None, dtype: Any) -> onnx.ModelProto:
        return function_onnx_graph("grad_loss_absolute_error", opset, dtype, weight_name)


class ElasticLearningLoss(BaseLearningLoss):
    """sum w (l1_weight |d| + l2_weight d^2) with d = expected - predicted."""

    def __init__(self, l1_weight: float = 0.5, l2_weight: float = 0.5) -> None:
        self.l1_weight = l1_weight
        self.l2_weight = l2_weight

    def _graph(self, opset: int, weight_name: str | None, dtype: Any) -> onnx.ModelProto:
        options = {"l1_weight": self.l1_weight, "l2_weight": self.l2_weight}
        return function_onnx_graph("grad_loss_elastic_error", opset, dtype, weight_name, **options)


class NegLogLearningLoss(BaseLearningLoss):
    """-sum w ((1 - y) log(1 - p) + y log p) for labels y, 0 or 1, and scores s.

    Args:
        eps: p = sigmoid(s) is clipped to [eps, 1 - eps].
        probability_function: what makes probabilities of scores; only 'sigmoid' is known.
    """

    def __init__(self, eps: float = 1e-5, probability_function: str = "sigmoid") -> None:
        self.eps = eps
        self.probability_function = probability_function

    def prepared(self, expected: Any, dtype: np.dtype) -> np.ndarray:
        return binary_labels(expected)

    def _graph(self, opset: int, weight_name: str | None, dtype: Any) -> onnx.ModelProto:
        name = f"grad_{self.probability_function}_neg_log_loss_error"
        return function_onnx_graph(name, opset, dtype, weight_name, eps=self.eps)


_NAMES: dict[type[BaseLearningLoss], tuple[str, ...]] = {
    SquareLearningLoss: ("square_error", "square"),
    AbsoluteLearningLoss: ("absolute_error", "absolute"),
    ElasticLearningLoss: ("elastic_error", "elastic"),
    NegLogLearningLoss: ("log", "neglog", "logloss"),
}


# Asking a session costs more than running such a graph.
_BORDERS: WeakKeyDictionary[Any, tuple[dict[str, str], list[str]]] = WeakKeyDictionary()


def _border(session: Any) -> tuple[dict[str, str], list[str]]:
    """The types of the inputs of a session by name, and the names of its outputs."""
    if session not in _BORDERS:
        inputs = (*session.get_inputs(), *session.get_overridable_initializers())
        _BORDERS[session] = ({value.name: value.type for value in inputs}, [o.name for o in session.get_outputs()])
    return _BORDERS[session]


def _not_built(loss: BaseLearningLoss) -> OnwardError:
    return OnwardError(f"call build_onnx_function of this {type(loss).__name__} first")


def _matrix(value: Any, device: Any) -> Any:
    """Rows of numbers: the graphs know no more axes than that, and no less."""
    shape = value.shape()
    return _reshaped(value, [shape[0] if shape else 1, math.prod(shape[1:])], device)


def _reshaped(value: Any, shape: list[int], device: Any) -> Any:
    return value if value.shape() == shape else value_from_array(value.numpy().reshape(shape), device)


def _alike(expected: Any, predicted: Any, device: Any) -> Any:
    """What is expected, in the shape of the prediction: a column and a vector would be compared each with each."""
    if expected.shape() == predicted.shape():
        return expected
    sizes = [value.shape() for value in (expected, predicted)]
    if math.prod(sizes[0]) != math.prod(sizes[1]) or not all(1 in shape for shape in sizes):
        raise WrongValueError(
            f"what is expected has the shape {expected.shape()}, and the prediction {predicted.shape()}: a loss "
            "compares them element by element"
        )
    return _reshaped(expected, predicted.shape(), device)


def _typed(value: Any, kind: str, device: Any) -> Any:
    """Labels in the type of the graph; what would lose something is refused."""
    if value.data_type() == kind:
        return value
    array = value.numpy()
    converted = array.astype(NUMPY_TYPES[kind])
    if np.dtype(NUMPY_TYPES[kind]).kind in "iu" and (converted != array).any():
        raise WrongValueError(f"labels are {NUMPY_TYPES[kind]}; what is expected has {dtype_of(value)} with fractions")
    return value_from_array(converted, device)


def _rows(weight: Any, predicted: Any, device: Any) -> Any:
    """Weights of rows as a vector in the type of the prediction."""
    rows = predicted.shape()[0] if predicted.shape() else 1
    array = weight.numpy()
    if array.size not in (1, rows):
        raise WrongValueError(f"there are {rows} rows and {array.size} weights; each row has one")
    if array.ndim == 1 and weight.data_type() == predicted.data_type():
        return weight
    return value_from_array(array.reshape(-1).astype(dtype_of(predicted)), device)


def _weight_name(inputs: dict[str, str]) -> str:
    names = [name for name in inputs if name not in ("X1", "X2")]
    if not names:
        raise WrongValueError(
            "rows have weights, but the loss was built without an input for them; say weight_name='weight'"
        )
    return names[0]

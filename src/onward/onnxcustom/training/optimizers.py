"""An estimator whose loss is part of the graph."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from onward.errors import OnwardError
from onward.onnxcustom.training._base_estimator import BaseEstimator, passes_between_validations
from onward.onnxcustom.training._convert import binary_labels, in_type_of
from onward.onnxcustom.training._passes import Batch, run_passes
from onward.onnxcustom.training.data_loader import OrtDataLoader
from onward.onnxcustom.training.excs import (
    ConvergenceError,
    EvaluationError,
    NotFittedError,
    UnsupportedError,
    WrongValueError,
)
from onward.onnxcustom.utils.onnxruntime_helper import device_to_providers
from onward.onnxcustom.utils.orttraining_helper import MEAN_LOSS
from onward.runtime.options import RunOptions
from onward.session.parameters import TrainingParameters
from onward.session.training_session import TrainingSession

_PAST = 5  # losses that an error shows


class OrtGradientOptimizer(BaseEstimator):
    """Stochastic gradient descent: a `TrainingSession` computes the loss and updates the weights.

    Args:
        model_onnx: a graph with a loss (`add_loss_output` adds one); its inputs are features, labels and maybe weights
            of rows.
        weights_to_train: initializers, in any order.
        loss_output_name: the output that is the loss: a sum over rows, but for the mean of 'log'.
        max_iter: the number of passes over the data.
        training_optimizer_name: 'SGDOptimizer'.
        batch_size: rows in a batch.
        learning_rate: a number, 'SGD' or a learning rate that keeps nothing of former gradients; it is divided by the
            number of rows of a batch.
        device: 'cpu', 'cuda', 'cuda:1' or an OrtDevice.
        warm_start: whether `fit` continues with the weights of the former `fit`, and at first with those of the graph.
            Otherwise weights start as standard normal numbers drawn from numpy.random.
        verbose: 1 for a progress bar, 2 for one with the loss and the learning rate.
        validation_every: after how many passes the validation set is looked at; below 1, a part of `max_iter`.
        saved_gradient: where to write the gradient graph to; the whole training graph is written beside it, to
            `<saved_gradient>.training.onnx`.
        sample_weight_name: the input for weights of rows; the third, if there is none of that name.
    """

    train_session_: TrainingSession
    trained_coef_: dict[str, np.ndarray]

    def __init__(
        self,
        model_onnx: onnx.ModelProto,
        weights_to_train: list[str],
        loss_output_name: str = "loss",
        max_iter: int = 100,
        training_optimizer_name: str = "SGDOptimizer",
        batch_size: int = 10,
        learning_rate: Any = "SGD",
        device: Any = "cpu",
        warm_start: bool = False,
        verbose: int = 0,
        validation_every: float = 0.1,
        saved_gradient: str | None = None,
        sample_weight_name: str = "weight",
    ) -> None:
        super().__init__(model_onnx, learning_rate, device)
        self.weights_to_train = weights_to_train
        self.loss_output_name = loss_output_name
        self.max_iter = max_iter
        self.training_optimizer_name = training_optimizer_name
        self.batch_size = batch_size
        self.warm_start = warm_start
        self.verbose = verbose
        self.validation_every = passes_between_validations(validation_every, max_iter)
        self.saved_gradient = saved_gradient
        self.sample_weight_name = sample_weight_name
        if self.learning_rate.needs_grad:
            kind = type(self.learning_rate).__name__
            raise UnsupportedError(
                f"{kind} keeps something of former gradients, which this estimator does not; "
                "use OrtGradientForwardBackwardOptimizer"
            )

    # Weights --------------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, np.ndarray]:
        """The trained weights by name."""
        if hasattr(self, "train_session_"):
            return self.train_session_.get_state()
        if hasattr(self, "trained_coef_"):
            return self.trained_coef_
        raise NotFittedError("there are no weights yet: call fit first")

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Set weights by name."""
        if not hasattr(self, "train_session_"):
            raise NotFittedError("there is nothing to set yet: call fit first")
        self.train_session_.load_state(dict(state))
        self.trained_coef_ = self.train_session_.get_state()

    def get_trained_onnx(self, model: onnx.ModelProto | None = None) -> onnx.ModelProto:
        """The graph with the trained weights; give the graph without the loss as `model` to get one that predicts."""
        return self._get_trained_onnx(self.get_state(), model)

    # Training -------------------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        X_val: Any = None,
        y_val: Any = None,
        use_numpy: bool = False,
    ) -> OrtGradientOptimizer:
        """Train.

        Args:
            X: features.
            y: labels.
            sample_weight: a weight for each row, if the graph has an input for it.
            X_val: features of a validation set, whose rows have a weight of 1.
            y_val: labels of it.
            use_numpy: accepted; either way, batches are views of the data.
        """
        inputs = self._data_inputs()
        if len(inputs) != (2 if sample_weight is None else 3):
            raise OnwardError(
                f"the graph takes {[value.name for value in inputs]}, and rows have "
                f"{'no weights' if sample_weight is None else 'weights'}: it must take features, labels, and weights "
                "of rows if there are some"
            )
        previous = dict(self.trained_coef_) if self.warm_start and hasattr(self, "trained_coef_") else None
        self.train_session_ = self._create_training_session(
            self.model_onnx, self.weights_to_train, self.loss_output_name, self.training_optimizer_name
        )
        self._start(previous)
        self.input_names_ = [value.name for value in self.train_session_.get_inputs()]
        self.output_names_ = [value.name for value in self.train_session_.get_outputs()]
        self.loss_index_ = self.output_names_.index(self.loss_output_name)
        loader = self._loader(X, y, sample_weight, self.batch_size)
        ones = None if sample_weight is None or X_val is None else np.ones(len(X_val))
        validation = None if X_val is None else self._loader(X_val, y_val, ones, 0)
        self.train_losses_: list[float] = []
        self.validation_losses_: list[float] = []
        self.past_losses_: list[float] = []
        self.learning_rate.init_learning_rate()

        def after(number: int, loss: float) -> float:
            self.train_losses_.append(loss)
            rate = self.learning_rate.update_learning_rate(number).value
            if validation is not None and (number + 1) % self.validation_every == 0:
                self.validation_losses_.append(self._evaluation(validation))
            self.past_losses_.clear()
            return rate

        try:
            run_passes(
                self._iteration,
                loader.iter_numpy,
                loader.batch_rows,
                passes=self.max_iter,
                verbose=self.verbose,
                after=after,
            )
        finally:
            self.trained_coef_ = self.train_session_.get_state()
        return self

    def _create_training_session(
        self, training_onnx: onnx.ModelProto, weights_to_train: list[str], loss_output_name: str, optimizer: str
    ) -> TrainingSession:
        if optimizer != "SGDOptimizer":
            raise UnsupportedError(f"only SGDOptimizer is known, not {optimizer!r}")
        parameters = TrainingParameters()
        parameters.loss_output_name = loss_output_name
        parameters.weights_to_train = set(weights_to_train)
        parameters.training_optimizer_name = optimizer
        parameters.optimizer_attributes_map = {name: {} for name in weights_to_train}
        parameters.optimizer_int_attributes_map = {name: {} for name in weights_to_train}
        if self.saved_gradient is not None:
            parameters.model_with_gradient_graph_path = self.saved_gradient
            parameters.model_with_training_graph_path = f"{self.saved_gradient}.training.onnx"
        providers = device_to_providers(self.device)
        return TrainingSession(training_onnx.SerializeToString(), parameters, providers=providers)

    def _start(self, previous: Mapping[str, np.ndarray] | None) -> None:
        """Set the weights that training starts with: former ones, those of the graph, or new ones."""
        if previous is not None:
            self.train_session_.load_state(previous)
        elif not self.warm_start:
            present = self.train_session_.get_state()
            names = [name for name in present if name in self.weights_to_train]  # and no running statistics
            drawn = {name: np.random.standard_normal(present[name].shape) for name in names}
            arrays = {name: np.asarray(array).astype(present[name].dtype) for name, array in drawn.items()}
            self.train_session_.load_state(arrays)

    # Data -----------------------------------------------------------------------------------------------------------

    def _data_inputs(self) -> list[onnx.ValueInfoProto]:
        """Features, labels, and weights if there are any."""
        initializers = {tensor.name for tensor in self.model_onnx.graph.initializer}
        inputs = [value for value in self.model_onnx.graph.input if value.name not in initializers]
        weights = [value for value in inputs if value.name == self.sample_weight_name]
        return [*(value for value in inputs if value not in weights), *weights]

    def _loader(self, X: Any, y: Any, sample_weight: Any, batch_size: int) -> OrtDataLoader:
        """Data in the types that the graph takes. The session brings batches to its device."""
        if y is None:
            raise WrongValueError("there are features, but no labels: y or y_val is None")
        if self._is_mean():
            y = binary_labels(y)
        kinds = [onnx.helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type) for v in self._data_inputs()]
        arrays = [None if a is None else in_type_of(a, k) for a, k in zip((X, y, sample_weight), kinds, strict=False)]
        return OrtDataLoader(*arrays[:2], *arrays[2:], batch_size=batch_size)  # type: ignore[misc, arg-type]

    def _feeds(self, values: tuple[np.ndarray, ...]) -> dict[str, np.ndarray]:
        """What is fed for a batch; labels are columns, but a graph may take them as a vector."""
        feeds = {}
        for value, array in zip(self._data_inputs(), values, strict=True):
            shape = value.type.tensor_type.shape
            rank = len(shape.dim) if value.type.tensor_type.HasField("shape") else array.ndim
            feeds[value.name] = array.reshape(len(array), *array.shape[2:]) if array.ndim == rank + 1 else array
        return feeds

    def _iteration(self, batch: Batch) -> float:
        """Learn from a batch; returns its loss, a sum over its rows."""
        rate = np.array([self.learning_rate.value / batch.rows], np.float32)
        feeds = self._feeds(batch.values) | {self.input_names_[-1]: rate}
        loss = float(self.train_session_.run([self.loss_output_name], feeds)[0].reshape(-1)[0])
        if not math.isfinite(loss):
            raise ConvergenceError(
                f"the loss is {loss}, gradient descent has failed: learning_rate={self.learning_rate!r}, past losses="
                f"{self.past_losses_[-_PAST:]}. A lower learning rate may help."
            )
        total = self._sum(loss, batch.rows)
        self.past_losses_.append(total / batch.rows)
        return total

    def _evaluation(self, loader: OrtDataLoader) -> float:
        """The mean loss of the validation set."""
        options = RunOptions()
        options.only_execute_path_to_fetches = True
        options.training_mode = False
        feeds = self._feeds(loader.data_np)
        loss = float(self.train_session_.run([self.loss_output_name], feeds, options)[0].reshape(-1)[0])
        if not math.isfinite(loss):
            raise EvaluationError(f"the loss of the validation set is {loss}")
        return self._sum(loss, len(loader)) / len(loader)

    def _sum(self, loss: float, rows: int) -> float:
        """A loss as a sum over rows: that of 'log' is a mean."""
        return loss * rows if self._is_mean() else loss

    def _is_mean(self) -> bool:
        """Whether the loss is that of 'log'."""
        return any(entry.key == MEAN_LOSS for entry in self.model_onnx.metadata_props)

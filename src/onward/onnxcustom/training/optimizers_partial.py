"""An estimator whose loss is outside of the graph."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import onnx

from onward.errors import warn
from onward.onnxcustom.training._base_estimator import passes_between_validations
from onward.onnxcustom.training._base_onnx_function import one_dtype, session_of
from onward.onnxcustom.training._convert import in_type_of
from onward.onnxcustom.training._passes import Batch, run_passes
from onward.onnxcustom.training._weights import STATES, EstimatorWithWeights
from onward.onnxcustom.training.data_loader import OrtDataLoader
from onward.onnxcustom.training.excs import (
    ConvergenceError,
    ConvergenceWarning,
    UnsupportedError,
    WrongValueError,
)
from onward.onnxcustom.training.ortgradient import OrtGradientForwardBackward, OrtGradientForwardBackwardFunction
from onward.onnxcustom.training.sgd_learning_loss import BaseLearningLoss
from onward.onnxcustom.training.sgd_learning_penalty import BaseLearningPenalty
from onward.onnxcustom.utils.onnx_function import function_onnx_graph
from onward.onnxcustom.utils.onnx_helper import get_onnx_opset
from onward.onnxcustom.utils.onnxruntime_helper import device_to_providers
from onward.onnxcustom.utils.orttraining_helper import get_train_initializer
from onward.onnxcustom.utils.print_helper import str_ortvalue

_FIT = "[OrtGradientForwardBackwardOptimizer.fit] "
_ITERATION = "[OrtGradientForwardBackwardOptimizer._iteration] "
_PAST = 5  # losses that an error shows


class OrtGradientForwardBackwardOptimizer(EstimatorWithWeights):
    """Stochastic gradient descent: the graph predicts, the loss is computed outside of it.

    Args:
        model_onnx: the graph that predicts; it has one input, the features, and its first output is the prediction.
        weights_to_train: initializers, in alphabetical order and in that of the graph (`onnx_rename_weights` makes them
            so); None for all of floating point.
        loss_output_name: not used.
        max_iter: the number of passes over the data.
        training_optimizer_name: 'SGDOptimizer'.
        batch_size: rows in a batch.
        learning_rate: a number, 'SGD', 'Nesterov' or a learning rate.
        device: 'cpu', 'cuda', 'cuda:1' or an OrtDevice.
        warm_start: whether `fit` continues with the weights (and velocities) of the former `fit`, and at first with
            those of the graph. Otherwise weights start as standard normal numbers drawn from numpy.random.
        verbose: 1 for a progress bar, 2 for one with the loss and the learning rate.
        validation_every: after how many passes the validation set is looked at; below 1, a part of `max_iter`.
        learning_loss: 'square_error', 'absolute_error', 'elastic', 'log' or a loss.
        enable_logging: whether the logger "onnxcustom" is told of every step.
        weight_name: how the loss calls the weights of rows; None if there are none.
        learning_penalty: None, 'elastic' or a penalty.
        exc: whether a loss that is not finite raises ConvergenceError; else it is a warning, and training goes on.
    """

    def __init__(
        self,
        model_onnx: onnx.ModelProto,
        weights_to_train: list[str] | None = None,
        loss_output_name: str = "loss",
        max_iter: int = 100,
        training_optimizer_name: str = "SGDOptimizer",
        batch_size: int = 10,
        learning_rate: Any = "SGD",
        device: Any = "cpu",
        warm_start: bool = False,
        verbose: int = 0,
        validation_every: float = 0.1,
        learning_loss: Any = "square_error",
        enable_logging: bool = False,
        weight_name: str | None = None,
        learning_penalty: Any = None,
        exc: bool = True,
    ) -> None:
        super().__init__(model_onnx, learning_rate, device)
        self.weights_to_train = (
            list(get_train_initializer(model_onnx)) if weights_to_train is None else weights_to_train
        )
        self.loss_output_name = loss_output_name
        self.max_iter = max_iter
        self.training_optimizer_name = training_optimizer_name
        self.batch_size = batch_size
        self.warm_start = warm_start
        self.verbose = verbose
        self.validation_every = passes_between_validations(validation_every, max_iter)
        self.learning_loss = BaseLearningLoss.select(learning_loss)
        self.enable_logging = enable_logging
        self.weight_name = weight_name
        self.learning_penalty = BaseLearningPenalty.select(learning_penalty)
        self.exc = exc
        self.build_onnx_function()

    @property
    def needs_grad(self) -> bool:
        """Whether the learning rate keeps something of former gradients."""
        return self.learning_rate.needs_grad

    def build_onnx_function(self) -> None:
        """Make the graphs of the loss, the penalty and the steps, and the sessions that run them."""
        opset, count = get_onnx_opset(self.model_onnx), len(self.weights_to_train)
        dtype = self._dtype()
        # Subclasses of others need not know of types.
        typed = () if dtype == np.float32 else (dtype,)
        self.learning_loss.build_onnx_function(opset, self.device, self.weight_name, *typed)
        self.learning_rate.build_onnx_function(opset, self.device, count, *typed)
        self.learning_penalty.build_onnx_function(opset, self.device, count, *typed)
        self.zero_onnx_ = function_onnx_graph("zero", dtype=dtype)
        self.zero_sess_ = session_of(self.zero_onnx_, self.device)

    def _dtype(self) -> np.dtype:
        """The type that weights have; that of unknown ones is an error of `fit`."""
        known = get_train_initializer(self.model_onnx)
        names = [name for name in self.weights_to_train if name in known]
        return one_dtype([known[name][0] for name in names], names)

    @property
    def _logger(self) -> logging.Logger | None:
        return logging.getLogger("onnxcustom") if self.enable_logging else None

    def _info(self, message: str, *args: Any) -> None:
        if self.enable_logging:
            logging.getLogger("onnxcustom").info(_FIT + message, *args)

    # Training -------------------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        X_val: Any = None,
        y_val: Any = None,
        use_numpy: bool = False,
    ) -> OrtGradientForwardBackwardOptimizer:
        """Train.

        Args:
            X: features.
            y: what is to be predicted.
            sample_weight: a weight for each row; `weight_name` must have been said.
            X_val: features of a validation set.
            y_val: what is to be predicted there.
            use_numpy: not used; earlier releases had it.
        """
        if self.training_optimizer_name != "SGDOptimizer":
            raise UnsupportedError(f"only SGDOptimizer is known, not {self.training_optimizer_name!r}")
        self._open()
        if sample_weight is not None and self.weight_name is None:
            raise WrongValueError("rows have weights, but weight_name is None; say weight_name='weight'")
        self._start()
        loader = self._loader(X, y, sample_weight, self.batch_size)
        validation = None if X_val is None else self._loader(X_val, y_val, None, 0)
        self.train_losses_: list[float] = []
        self.validation_losses_: list[float] | None = None if validation is None else []
        self.learning_rate.init_learning_rate()
        self.past_losses_: list[float] = []

        def after(number: int, loss: float) -> float:
            self.train_losses_.append(loss)
            rate = self.learning_rate.update_learning_rate(number).value
            self._info("lr value=%r", rate)
            if validation is not None and (number + 1) % self.validation_every == 0:
                assert self.validation_losses_ is not None
                self.validation_losses_.append(self._evaluation(validation))
            self.past_losses_.clear()
            return rate

        run_passes(
            self._iteration,
            loader.iter_ortvalue,
            loader.batch_rows,
            passes=self.max_iter,
            verbose=self.verbose,
            after=after,
        )
        del self.past_losses_
        self._keep_statistics()
        self._info("end loss=%r", self.train_losses_[-1] if self.train_losses_ else None)
        return self

    def _open(self) -> None:
        """Make what runs the graph forward and backward."""
        self.train_session_, self.train_function_ = self._create_training_session(
            self.model_onnx, self.weights_to_train, self.device
        )
        names = self.train_session_.cls_type_
        self.input_names_: list[str] = names._grad_input_names
        self.output_names_: list[str] = names._bw_fetches_names
        if self._data_inputs() != 1:
            inputs = self.input_names_[: self._data_inputs()]
            raise WrongValueError(f"this estimator feeds one input, the features; the graph has {inputs}")
        self._info("input_names=%r", self.input_names_)
        self._info("output_names=%r", self.output_names_)
        self._info("weights_to_train=%r", self.weights_to_train)
        self._info("device=%r|%r", self.device.device_id(), self.device.device_type())
        self._info("warm_start=%r", self.warm_start)

    def _create_training_session(
        self, model_onnx: onnx.ModelProto, weights_to_train: list[str], device: Any
    ) -> tuple[OrtGradientForwardBackward, OrtGradientForwardBackwardFunction]:
        gradient = OrtGradientForwardBackward(
            model_onnx, weights_to_train=weights_to_train, providers=device_to_providers(device)
        )
        return gradient, gradient.new_instance()

    def _start(self) -> None:
        """Set the weights that training starts with."""
        arrays = [self.train_session_.get_initializer(name) for name in self.weights_to_train]
        continued = self.warm_start and hasattr(self, "train_state_")
        if continued:
            self.set_state([value.numpy() for value in self.get_state()])
            self._restore_statistics()
        elif self.warm_start:
            self.set_state(arrays)
        else:
            drawn = [np.random.standard_normal(array.shape) for array in arrays]
            self.set_state([np.asarray(new).astype(old.dtype) for new, old in zip(drawn, arrays, strict=True)])
        if not self.needs_grad:
            vars(self).pop(STATES["grad"], None)
        elif not (continued and hasattr(self, STATES["grad"])):
            self.set_state(arrays, kind="grad", zero=True)

    def _loader(self, X: Any, y: Any, sample_weight: Any, batch_size: int, random: bool = True) -> OrtDataLoader:
        """Data in the types that the graphs take."""
        if y is None:
            raise WrongValueError("there are features, but nothing that is to be predicted: y or y_val is None")
        declared = self.train_session_.input_dtypes_[0]
        labels = self.learning_loss.prepared(y, self._dtype())
        weights = None if sample_weight is None else in_type_of(sample_weight, self._dtype())
        return OrtDataLoader(in_type_of(X, declared), labels, weights, batch_size, self.device, random)

    def _iteration(self, batch: Batch) -> float:
        """Learn from a batch; returns its loss, a sum over its rows."""
        logger = self._logger
        x, y, weight = (*batch.values, None)[:3]
        state = self.get_full_state()
        state[0] = x
        prediction = self.train_function_.forward(state, training=True)[0]
        loss, gradient = self.learning_loss.loss_gradient(self.device, y, prediction, weight)
        weights = self.get_state()
        total = self._finite(float(self.learning_penalty.penalty_loss(self.device, loss, *weights).numpy()[0]), batch)
        gradients = self.train_function_.backward([gradient])
        velocities = self.get_state("grad") if self.needs_grad else [None] * len(weights)
        first = len(gradients) - len(weights)  # features of floating point have gradients, too
        for index, (tensor, velocity) in enumerate(zip(weights, velocities, strict=True)):
            self.learning_penalty.update_weights(index, self.device, tensor)
            slope = gradients[first + index]
            self.learning_rate.update_weights(index, self.device, tensor, slope, batch.rows, velocity)
        if logger is not None:
            logger.debug(_ITERATION + "learning_rate=%r loss=%g rows=%d", self.learning_rate, total, batch.rows)
            for name, tensor in zip(self.weights_to_train, weights, strict=True):
                logger.debug(_ITERATION + "%s: %s", name, str_ortvalue(tensor))
        return total

    def _finite(self, loss: float, batch: Batch) -> float:
        """`loss`, where it is finite; else an error, or a warning and NaN."""
        if math.isfinite(loss):
            self.past_losses_.append(loss / batch.rows)
            return loss
        message = (
            f"the loss is {loss}, gradient descent has failed: learning_rate={self.learning_rate!r}, past losses="
            f"{self.past_losses_[-_PAST:]}. A lower learning rate may help."
        )
        if self.exc:
            # What the forward pass has kept is not needed any more.
            self.train_function_.states_.clear()
            raise ConvergenceError(message)
        warn(message, ConvergenceWarning)
        return math.nan

    def _evaluation(self, loader: OrtDataLoader) -> float:
        """The mean loss of the validation set."""
        x, y = loader.data_ort[:2]
        prediction = self._predict(x)
        loss = float(self.learning_loss.loss_gradient(self.device, y, prediction)[0].numpy()[0])
        if math.isfinite(loss):
            return loss / len(loader)
        message = f"the loss of the validation set is {loss}, learning_rate={self.learning_rate!r}"
        if self.exc:
            raise ConvergenceError(message)
        warn(message, ConvergenceWarning)
        return math.nan

    def _predict(self, x: Any) -> Any:
        return self.train_function_.forward([x, *self.get_state()], training=False)[0]

    # Scores ---------------------------------------------------------------------------------------------------------

    def losses(self, X: Any, y: Any, sample_weight: Any = None) -> np.ndarray:
        """The loss of every row, in their order."""
        weights = self.get_state()
        if not hasattr(self, "train_function_"):  # this was unpickled
            self._open()
            self._restore_statistics()
        loader = self._loader(X, y, sample_weight, self.batch_size, random=False)
        found = np.empty(len(loader), self._dtype())
        rows = loader.batch_rows
        for start, values in zip(loader.starts(), loader.iter_ortvalue(), strict=True):
            x, labels, weight = (*values, None)[:3]
            prediction = self.train_function_.forward([x, *weights], training=False)[0]
            scores = self.learning_loss.loss_scores(self.device, labels, prediction, weight).numpy()
            found[start : start + rows] = scores.reshape(rows, -1).sum(axis=1)
        return found

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The mean loss of rows, below 0: higher is better."""
        found = self.losses(X, y, sample_weight)
        return float(-found.sum() / len(found))

"""The parameters that estimators have in common: those of scikit-learn's MLP, and a few more."""

from __future__ import annotations

import os
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import onnx
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, Options, StrOptions

from onward.sklearn.perceptron import ACTIVATIONS

Constraints = dict[str, list[Any]]


class Parameters(BaseEstimator):
    """What an estimator is told; scikit-learn reads the signature, and checks values when training begins."""

    _parameter_constraints: ClassVar[Constraints] = {
        "model": [str, bytes, os.PathLike, onnx.ModelProto, None],
        "hidden_layer_sizes": ["array-like", Interval(Integral, 1, None, closed="left")],
        "activation": [StrOptions(set(ACTIVATIONS))],
        "loss": [str, callable, None],
        "solver": [str],
        "alpha": [Interval(Real, 0, None, closed="left")],
        "batch_size": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "learning_rate": [StrOptions({"constant", "invscaling", "adaptive"})],
        "learning_rate_init": [Interval(Real, 0, None, closed="neither")],
        "power_t": [Interval(Real, 0, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "shuffle": ["boolean"],
        "random_state": ["random_state"],
        "tol": [Interval(Real, 0, None, closed="left")],
        "verbose": ["verbose"],
        "warm_start": ["boolean"],
        "momentum": [Interval(Real, 0, 1, closed="both")],
        "nesterovs_momentum": ["boolean"],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="left")],
        "beta_1": [Interval(Real, 0, 1, closed="left")],
        "beta_2": [Interval(Real, 0, 1, closed="left")],
        "epsilon": [Interval(Real, 0, None, closed="neither")],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left"), Options(Real, {np.inf})],
        "output": [str, None],
        "trainable": ["array-like", str, None],
        "frozen": ["array-like", str, None],
        "dtype": [StrOptions({"float32", "float64"}), None],
    }

    def __init__(
        self,
        model: Any = None,
        hidden_layer_sizes: Any = (100,),
        activation: str = "relu",
        *,
        loss: Any = None,
        solver: str = "adam",
        alpha: float = 0.0001,
        batch_size: int | str = "auto",
        learning_rate: str = "constant",
        learning_rate_init: float = 0.001,
        power_t: float = 0.5,
        max_iter: int = 200,
        shuffle: bool = True,
        random_state: Any = None,
        tol: float = 1e-4,
        verbose: bool | int = False,
        warm_start: bool = False,
        momentum: float = 0.9,
        nesterovs_momentum: bool = True,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        n_iter_no_change: float = 10,
        output: str | None = None,
        trainable: Any = None,
        frozen: Any = None,
        dtype: str | None = None,
    ) -> None:
        self.model = model
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.loss = loss
        self.solver = solver
        self.alpha = alpha
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.learning_rate_init = learning_rate_init
        self.power_t = power_t
        self.max_iter = max_iter
        self.shuffle = shuffle
        self.random_state = random_state
        self.tol = tol
        self.verbose = verbose
        self.warm_start = warm_start
        self.momentum = momentum
        self.nesterovs_momentum = nesterovs_momentum
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.n_iter_no_change = n_iter_no_change
        self.output = output
        self.trainable = trainable
        self.frozen = frozen
        self.dtype = dtype

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:  # noqa: N803  scikit-learn's name
        if not isinstance(self.model, (bytes, onnx.ModelProto)):
            return super().__repr__(N_CHAR_MAX)
        # The text of a model may be millions of lines.
        size = len(self.model) if isinstance(self.model, bytes) else self.model.ByteSize()
        shown = _Shown(f"<{type(self.model).__name__}, {size:,} bytes>")
        return type(self)(**{**self.get_params(deep=False), "model": shown}).__repr__(N_CHAR_MAX)


class _Shown:
    """What is shown in the place of something long."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text

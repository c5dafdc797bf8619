"""Small data sets of scikit-learn, and models for them."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import onnx
import torch
from sklearn.datasets import load_diabetes, load_digits, load_iris, make_regression

from onward.torch import export

Array = np.ndarray


@cache
def digits() -> tuple[Array, Array]:
    X, y = load_digits(return_X_y=True)  # noqa: N806
    return X[:600] / 16, y[:600]


@cache
def iris() -> tuple[Array, Array]:
    X, y = load_iris(return_X_y=True)  # noqa: N806
    return (X - X.mean(0)) / X.std(0), y


@cache
def diabetes() -> tuple[Array, Array]:
    X, y = load_diabetes(return_X_y=True)  # noqa: N806
    return X / X.std(0), (y - y.mean()) / y.std()


@cache
def three_targets() -> tuple[Array, Array]:
    X, y = make_regression(300, 8, n_targets=3, random_state=0)  # noqa: N806
    return X, y / 100


@cache
def convolutional() -> onnx.ModelProto:
    """A network for digits as images [N, 1, 8, 8], with scores of 10 classes."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(4 * 36, 10),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return export(module, torch.zeros(2, 1, 8, 8))


def quiet(estimator: Any, *args: Any, **kwargs: Any) -> Any:
    """Fit without the warning that it has not converged."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Stochastic Optimizer: Maximum iterations")
        return estimator.fit(*args, **kwargs)

"""Momentum: plain descent, the classical velocity, and Nesterov's.

python examples/onnxcustom/nesterov.py --plot losses.png
"""

from __future__ import annotations

import onward.as_onnxcustom  # noqa: F401  from here on, there is an onnxcustom

from pathlib import Path
from typing import Any

import curves
import numpy as np
from onnxcustom.training.optimizers_partial import OrtGradientForwardBackwardOptimizer
from onnxcustom.training.sgd_learning_rate import LearningRateSGD, LearningRateSGDNesterov
from onnxcustom.utils.onnx_helper import onnx_rename_weights
from skl2onnx import to_onnx
from sklearn.datasets import make_regression
from sklearn.neural_network import MLPRegressor

from onnxcustom import get_max_opset


def main(rows: int, passes: int, plot: Path | None = None) -> dict[str, Any]:
    """Three ways down, from the same weights."""
    X, y = make_regression(rows, n_features=10, bias=2, random_state=0)
    X, y = X.astype(np.float32), (y / y.std()).astype(np.float32)
    network = MLPRegressor(hidden_layer_sizes=(10, 10), random_state=0).partial_fit(X, y)
    graph = onnx_rename_weights(to_onnx(network, X[:1], target_opset=get_max_opset()))
    rates = {
        "SGD": LearningRateSGD(2e-3, learning_rate="constant"),
        "momentum": LearningRateSGDNesterov(2e-3, learning_rate="constant", momentum=0.9, nesterov=False),
        "Nesterov": LearningRateSGDNesterov(2e-3, learning_rate="constant", momentum=0.9, nesterov=True),
    }
    losses = {}
    for name, rate in rates.items():
        np.random.seed(0)
        model = OrtGradientForwardBackwardOptimizer(graph, learning_rate=rate, max_iter=passes, warm_start=True)
        losses[name] = model.fit(X, y).train_losses_
    curves.plot(plot, "Half squared error", losses)
    return losses


if __name__ == "__main__":
    curves.start(main, rows=1000, passes=20)

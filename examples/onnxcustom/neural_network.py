"""A neural network of scikit-learn, trained by both estimators.

python examples/onnxcustom/neural_network.py --plot losses.png
"""

from __future__ import annotations

import onward.as_onnxcustom  # noqa: F401  from here on, there is an onnxcustom

import warnings
from pathlib import Path
from typing import Any

import curves
import numpy as np
from onnxcustom.training.optimizers import OrtGradientOptimizer
from onnxcustom.training.optimizers_partial import OrtGradientForwardBackwardOptimizer
from onnxcustom.utils.onnx_helper import onnx_rename_weights
from onnxcustom.utils.orttraining_helper import add_loss_output, get_train_initializer
from skl2onnx import to_onnx
from sklearn.datasets import make_regression
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPRegressor

from onnxcustom import get_max_opset


def main(rows: int, passes: int, plot: Path | None = None) -> dict[str, Any]:
    """A network with two hidden layers."""
    np.random.seed(0)
    X, y = make_regression(rows, n_features=10, bias=2, random_state=0)
    X, y = X.astype(np.float32), (y / y.std()).astype(np.float32)
    network = MLPRegressor(
        hidden_layer_sizes=(10, 10), solver="sgd", learning_rate_init=5e-2, max_iter=1, batch_size=10, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        network.fit(X, y)
    graph = onnx_rename_weights(to_onnx(network, X[:1], target_opset=get_max_opset()))
    weights = list(get_train_initializer(graph))
    print("weights:", ", ".join(weights))

    # Both start with the weights of the network.
    options = {"learning_rate": 2e-2, "max_iter": passes, "batch_size": 10, "warm_start": True}
    inside = OrtGradientOptimizer(add_loss_output(graph), weights, **options)
    outside = OrtGradientForwardBackwardOptimizer(graph, weights, **options)
    inside.fit(X, y)
    outside.fit(X, y)
    curves.plot(
        plot,
        "A network, squared error",
        {"loss in the graph": inside.train_losses_, "loss outside": [2 * loss for loss in outside.train_losses_]},
    )
    return {"inside": inside.train_losses_, "outside": outside.train_losses_, "weights": weights}


if __name__ == "__main__":
    curves.start(main, rows=1000, passes=30)

"""scikit-learn's networks in the same conditions: the same weights, batches, rates and momentum give the same losses.

Batches are all rows, since each side draws others in its own way.

    python examples/onnxcustom/same_conditions.py --plot losses.png
"""

from __future__ import annotations

import onward.as_onnxcustom  # noqa: F401  from here on, there is an onnxcustom

import copy
from pathlib import Path
from typing import Any

import curves
import numpy as np
from onnxcustom.training.optimizers import OrtGradientOptimizer
from onnxcustom.training.optimizers_partial import OrtGradientForwardBackwardOptimizer
from onnxcustom.training.sgd_learning_loss import NegLogLearningLoss
from onnxcustom.training.sgd_learning_rate import LearningRateSGD, LearningRateSGDNesterov
from onnxcustom.utils.onnx_helper import onnx_rename_weights
from onnxcustom.utils.orttraining_helper import add_loss_output, get_train_initializer
from skl2onnx import to_onnx
from skl2onnx.helpers.onnx_helper import select_model_inputs_outputs
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.preprocessing import StandardScaler

from onnxcustom import get_max_opset


def twin(kind: Any, X: np.ndarray, y: np.ndarray, momentum: float) -> tuple[Any, Any]:
    """A network of scikit-learn with its first weights, and the same as a graph that gives scores."""
    options = {"solver": "sgd", "alpha": 0, "learning_rate_init": 0.05, "shuffle": False, "batch_size": len(X)}
    network = kind(hidden_layer_sizes=(10,), activation="tanh", momentum=momentum, random_state=0, **options)
    # The loss of a pass with a rate of 0 is that of the first weights, which it leaves as they are.
    network.set_params(learning_rate_init=1e-30)
    network.partial_fit(X, y, **({"classes": np.unique(y)} if kind is MLPClassifier else {}))
    zipmap = {"options": {"zipmap": False}} if kind is MLPClassifier else {}
    graph = to_onnx(network, X[:1], target_opset=get_max_opset(), **zipmap)
    if kind is MLPClassifier:
        graph = select_model_inputs_outputs(graph, outputs=["add_result1"])
    return network, onnx_rename_weights(graph)


def passes_of(network: Any, X: np.ndarray, y: np.ndarray, passes: int) -> list[float]:
    """The losses of scikit-learn, from the weights that the network has."""
    network = copy.deepcopy(network).set_params(learning_rate_init=0.05)
    network._optimizer.learning_rate = network._optimizer.learning_rate_init = 0.05
    network._optimizer.velocities = [np.zeros_like(v) for v in network._optimizer.velocities]
    for _ in range(passes):
        network.partial_fit(X, y)
    return list(network.loss_curve_[-passes:])


def main(rows: int, passes: int, plot: Path | None = None) -> dict[str, Any]:
    """Losses of both, side by side."""
    X, y = load_diabetes(return_X_y=True)
    X, y = StandardScaler().fit_transform(X)[:rows].astype(np.float32), y[:rows]
    y = ((y - y.mean()) / y.std()).astype(np.float32)
    features, labels = load_breast_cancer(return_X_y=True)
    features, labels = StandardScaler().fit_transform(features)[:rows].astype(np.float32), labels[:rows]

    found: dict[str, tuple[list[float], list[float]]] = {}
    options = {"max_iter": passes, "batch_size": 0, "warm_start": True}
    for title, momentum in (("SGD", 0.0), ("Nesterov", 0.9)):
        rate = LearningRateSGD(0.05, learning_rate="constant")
        if momentum:
            rate = LearningRateSGDNesterov(0.05, learning_rate="constant", momentum=momentum)
        network, graph = twin(MLPRegressor, X, y, momentum)
        model = OrtGradientForwardBackwardOptimizer(graph, learning_rate=rate, **options).fit(X, y)
        found[f"regression, {title}"] = passes_of(network, X, y, passes), model.train_losses_
        network, graph = twin(MLPClassifier, features, labels, momentum)
        model = OrtGradientForwardBackwardOptimizer(
            graph, learning_rate=copy.deepcopy(rate), learning_loss=NegLogLearningLoss(eps=1e-7), **options
        ).fit(features, labels)
        found[f"classification, {title}"] = passes_of(network, features, labels, passes), model.train_losses_

    # The loss in the graph is a sum of squares, twice what scikit-learn has: half the rate.
    network, graph = twin(MLPRegressor, X, y, 0.0)
    half = LearningRateSGD(0.025, learning_rate="constant")
    inside = OrtGradientOptimizer(
        add_loss_output(graph), list(get_train_initializer(graph)), learning_rate=half, **options
    )
    inside.fit(X, y)
    losses = [loss / 2 for loss in inside.train_losses_]
    found["regression, loss in the graph"] = passes_of(network, X, y, passes), losses

    for name, (theirs, ours) in found.items():
        print(f"{name}: losses differ by {np.max(np.abs(np.divide(ours, theirs) - 1)):.1e} at most")
    flat = {}
    for name, (theirs, ours) in found.items():
        flat |= {f"{name}, scikit-learn": theirs, name: ours}
    curves.plot(plot, "The same conditions", flat)
    return found


if __name__ == "__main__":
    curves.start(main, rows=300, passes=50)

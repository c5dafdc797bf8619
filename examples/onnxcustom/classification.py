"""A classification: raw scores, labels 0 and 1, and the log loss, against scikit-learn's network.

python examples/onnxcustom/classification.py --plot losses.png
"""

from __future__ import annotations

import onward.as_onnxcustom  # noqa: F401  from here on, there is an onnxcustom

import warnings
from pathlib import Path
from typing import Any

import curves
import numpy as np
import onnxruntime
from onnxcustom.training.optimizers_partial import OrtGradientForwardBackwardOptimizer
from onnxcustom.training.sgd_learning_loss import NegLogLearningLoss
from onnxcustom.training.sgd_learning_rate import LearningRateSGDNesterov
from onnxcustom.utils.onnx_helper import onnx_rename_weights
from skl2onnx import to_onnx
from skl2onnx.helpers.onnx_helper import select_model_inputs_outputs
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from onnxcustom import get_max_opset


def main(rows: int, passes: int, plot: Path | None = None) -> dict[str, Any]:
    """Breast cancer, from cell nuclei."""
    np.random.seed(0)
    X, y = load_breast_cancer(return_X_y=True)
    X, y = StandardScaler().fit_transform(X)[:rows].astype(np.float32), y[:rows].astype(np.int64)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
    network = MLPClassifier(
        hidden_layer_sizes=(20,),
        solver="sgd",
        learning_rate_init=1e-2,
        max_iter=passes,
        batch_size=15,
        alpha=0,
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        network.fit(X_train, y_train)
    whole = to_onnx(network, X[:1], options={"zipmap": False}, target_opset=get_max_opset())
    # The scores that the last layer gives, before they become probabilities.
    scores = select_model_inputs_outputs(whole, outputs=["add_result1"])
    graph = onnx_rename_weights(scores)

    model = OrtGradientForwardBackwardOptimizer(
        graph,
        learning_rate=LearningRateSGDNesterov(1e-2, learning_rate="constant"),
        learning_loss=NegLogLearningLoss(),
        max_iter=passes,
        batch_size=15,
    )
    model.fit(X_train, y_train)
    session = onnxruntime.InferenceSession(model.get_trained_onnx().SerializeToString())
    accuracy = float(((session.run(None, {"X": X_test})[0][:, 0] > 0) == y_test).mean())
    print(f"accuracy on the test set: {accuracy:.3f}; of scikit-learn: {network.score(X_test, y_test):.3f}")
    curves.plot(plot, "Log loss", {"scikit-learn": network.loss_curve_, "onnxcustom": model.train_losses_})
    return {"accuracy": accuracy, "twin": network.score(X_test, y_test), "losses": model.train_losses_}


if __name__ == "__main__":
    curves.start(main, rows=569, passes=30)

"""By hand: TrainingParameters, a TrainingSession, and a loop of one's own.

python examples/onnxcustom/by_hand.py --plot losses.png
"""

from __future__ import annotations

import onward.as_onnxcustom
import onward.as_onnxruntime_training  # noqa: F401  and a TrainingSession, which stock onnxruntime lacks

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import curves
import numpy as np
from onnxcustom.utils.orttraining_helper import add_loss_output, get_train_initializer
from onnxruntime import TrainingParameters, TrainingSession
from skl2onnx import to_onnx
from sklearn.datasets import make_regression
from sklearn.linear_model import LinearRegression

from onnxcustom import get_max_opset


def batches(
    X: np.ndarray, y: np.ndarray, size: int, draw: np.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The rows of one pass, in an order that is drawn."""
    order = draw.permutation(len(X))
    for start in range(0, len(X), size):
        chosen = order[start : start + size]
        yield X[chosen], y[chosen, None]


def main(rows: int, passes: int, plot: Path | None = None) -> dict[str, Any]:
    """A linear regression, step by step."""
    draw = np.random.default_rng(0)
    X, y = make_regression(rows, n_features=2, bias=2, random_state=0)
    X, y = X.astype(np.float32), y.astype(np.float32)
    fitted = LinearRegression().fit(X, y)
    graph = add_loss_output(to_onnx(fitted, X[:1], black_op={"LinearRegressor"}, target_opset=get_max_opset()))
    weights = get_train_initializer(graph)

    parameters = TrainingParameters()
    parameters.loss_output_name = "loss"
    parameters.training_optimizer_name = "SGDOptimizer"
    parameters.weights_to_train = {"coef", "intercept"}
    parameters.optimizer_attributes_map = {name: {} for name in ("coef", "intercept")}
    parameters.optimizer_int_attributes_map = {name: {} for name in ("coef", "intercept")}
    session = TrainingSession(graph.SerializeToString(), parameters, providers=["CPUExecutionProvider"])
    print("inputs: ", ", ".join(value.name for value in session.get_inputs()))
    print("outputs:", ", ".join(value.name for value in session.get_outputs()))

    session.load_state(
        {name: draw.normal(size=weights[name][0].shape).astype(np.float32) for name in ("coef", "intercept")}
    )
    losses = []
    for _ in range(passes):
        total = 0.0
        for features, labels in batches(X, y, 10, draw):
            rate = np.array([1e-2 / len(features)], np.float32)
            feeds = {"X": features, "label": labels, "Learning_Rate": rate}
            total += float(session.run(["loss"], feeds)[0][0, 0])
        losses.append(total / rows)
    state = session.get_state()
    print("least squares:", fitted.coef_, fitted.intercept_)
    print("trained:      ", state["coef"].ravel(), state["intercept"])
    curves.plot(plot, "Squared error", {"by hand": losses})
    return {"state": state, "expected": fitted, "losses": losses}


if __name__ == "__main__":
    curves.start(main, rows=1000, passes=20)

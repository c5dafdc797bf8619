"""The same with the loss outside of the graph: forward, loss, backward, update.

python examples/onnxcustom/forward_backward.py --plot losses.png
"""

from __future__ import annotations

import onward.as_onnxcustom  # noqa: F401  from here on, there is an onnxcustom

from pathlib import Path
from typing import Any

import curves
import numpy as np
from onnxcustom.training.optimizers_partial import OrtGradientForwardBackwardOptimizer
from skl2onnx import to_onnx
from sklearn.datasets import make_regression
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import train_test_split

from onnxcustom import get_max_opset


def main(rows: int, passes: int, plot: Path | None = None) -> dict[str, Any]:
    """A linear regression with the loss outside of the graph, and a validation set."""
    np.random.seed(0)
    X, y = make_regression(rows, n_features=2, bias=2, random_state=0)
    X_train, X_test, y_train, y_test = train_test_split(X.astype(np.float32), y.astype(np.float32), random_state=0)
    fitted = LinearRegression().fit(X_train, y_train)
    graph = to_onnx(fitted, X_train[:1], black_op={"LinearRegressor"}, target_opset=get_max_opset())

    model = OrtGradientForwardBackwardOptimizer(
        graph, ["coef", "intercept"], learning_rate=1e-2, max_iter=passes, batch_size=10, validation_every=1
    )
    model.fit(X_train, y_train, X_val=X_test, y_val=y_test)
    weights = [value.numpy() for value in model.get_state()]
    print("least squares:", fitted.coef_, fitted.intercept_)
    print("trained:      ", weights[0].ravel(), weights[1])
    curves.plot(
        plot, "Half squared error", {"training": model.train_losses_, "validation": list(model.validation_losses_)}
    )
    return {"weights": weights, "expected": fitted, "losses": model.train_losses_}


if __name__ == "__main__":
    curves.start(main, rows=1000, passes=50)

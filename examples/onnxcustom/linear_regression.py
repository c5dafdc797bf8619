"""A linear regression with the loss in the graph: a model of scikit-learn, converted and trained again.

python examples/onnxcustom/linear_regression.py --plot losses.png
"""

from __future__ import annotations

import onward.as_onnxcustom  # noqa: F401  from here on, there is an onnxcustom

import tempfile
import warnings
from pathlib import Path
from typing import Any

import curves
import numpy as np
from onnxcustom.training.optimizers import OrtGradientOptimizer
from onnxcustom.utils.orttraining_helper import add_loss_output
from skl2onnx import to_onnx
from sklearn.datasets import make_regression
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression
from sklearn.neural_network import MLPRegressor

from onnxcustom import get_max_opset


def main(rows: int, passes: int, plot: Path | None = None) -> dict[str, Any]:
    """A linear regression with the loss in the graph."""
    np.random.seed(0)
    X, y = make_regression(rows, n_features=2, bias=2, random_state=0)
    X, y = X.astype(np.float32), y.astype(np.float32)

    # The twin of scikit-learn: a network without hidden layers, and without momentum.
    twin = MLPRegressor(
        hidden_layer_sizes=(),
        max_iter=passes,
        batch_size=10,
        solver="sgd",
        alpha=0,
        learning_rate_init=1e-2,
        n_iter_no_change=1000,
        momentum=0,
        nesterovs_momentum=False,
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        twin.fit(X, y)

    fitted = LinearRegression().fit(X, y)
    predicting = to_onnx(fitted, X[:1], black_op={"LinearRegressor"}, target_opset=get_max_opset())
    training = add_loss_output(predicting)

    with tempfile.TemporaryDirectory() as folder:
        gradient = Path(folder) / "gradient.onnx"
        model = OrtGradientOptimizer(
            training,
            ["intercept", "coef"],
            learning_rate=1e-2,
            max_iter=passes,
            batch_size=10,
            saved_gradient=str(gradient),
        )
        model.fit(X, y)
        files = sorted(path.name for path in Path(folder).iterdir())

    state = model.get_state()
    print("least squares:", fitted.coef_, fitted.intercept_)
    print("trained:      ", state["coef"].ravel(), state["intercept"])
    curves.plot(
        plot,
        "Linear regression, squared error",
        # Half squares in scikit-learn.
        {"scikit-learn": [2 * loss for loss in twin.loss_curve_], "onnxcustom": model.train_losses_},
    )
    return {"state": state, "expected": fitted, "losses": model.train_losses_, "files": files}


if __name__ == "__main__":
    curves.start(main, rows=1000, passes=50)

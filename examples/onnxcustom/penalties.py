"""Penalties: what l1 and l2 do to weights, in the graph and outside of it.

python examples/onnxcustom/penalties.py --plot losses.png
"""

from __future__ import annotations

import onward.as_onnxcustom  # noqa: F401  from here on, there is an onnxcustom

from pathlib import Path
from typing import Any

import curves
import numpy as np
from onnxcustom.training.optimizers import OrtGradientOptimizer
from onnxcustom.training.optimizers_partial import OrtGradientForwardBackwardOptimizer
from onnxcustom.training.sgd_learning_penalty import ElasticLearningPenalty
from onnxcustom.utils.orttraining_helper import add_loss_output
from skl2onnx import to_onnx
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import StandardScaler

from onnxcustom import get_max_opset


def main(rows: int, passes: int, plot: Path | None = None) -> dict[str, Any]:
    """Diabetes, with more and more penalty."""
    X, y = load_diabetes(return_X_y=True)
    X, y = StandardScaler().fit_transform(X)[:rows].astype(np.float32), y[:rows]
    y = ((y - y.mean()) / y.std()).astype(np.float32)
    fitted = LinearRegression().fit(X, y)
    graph = to_onnx(fitted, X[:1], black_op={"LinearRegressor"}, target_opset=get_max_opset())
    options = {"learning_rate": 1e-2, "max_iter": passes, "batch_size": 10, "warm_start": True}
    losses, sizes = {}, {}
    for l2 in (0.0, 1e-3, 1e-2):
        # Outside of the graph: at each step, weights shrink before they move along the gradient.
        np.random.seed(0)
        penalty = ElasticLearningPenalty(l1=0, l2=l2)
        outside = OrtGradientForwardBackwardOptimizer(graph, learning_penalty=penalty, **options).fit(X, y)
        losses[f"outside, l2={l2:g}"] = outside.train_losses_
        sizes["outside", l2] = float(np.abs(outside.get_state()[0].numpy()).sum())
        # In the graph: a part of the loss, whose gradient counts with the learning rate.
        np.random.seed(0)
        part = {"coef": {"l2": 1e3 * l2}} if l2 else None
        inside = OrtGradientOptimizer(add_loss_output(graph, penalty=part), ["coef", "intercept"], **options).fit(X, y)
        losses[f"in the graph, l2={1e3 * l2:g}"] = inside.train_losses_
        sizes["in the graph", l2] = float(np.abs(inside.get_state()["coef"]).sum())
    for (where, l2), size in sorted(sizes.items()):
        print(f"{where:>13}, {l2:5g}: the weights add up to {size:.3f}")
    curves.plot(plot, "Loss with its penalty", losses, logarithmic=False)
    return {"losses": losses, "sizes": sizes}


if __name__ == "__main__":
    curves.start(main, rows=442, passes=30)

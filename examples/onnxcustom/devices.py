"""The same training on the CPU and on another device, if onnxruntime has one.

python examples/onnxcustom/devices.py --plot losses.png
"""

from __future__ import annotations

import onward.as_onnxcustom  # noqa: F401  from here on, there is an onnxcustom

import time
from pathlib import Path
from typing import Any

import curves
import numpy as np
import onnxruntime
from onnxcustom.training.optimizers_partial import OrtGradientForwardBackwardOptimizer
from onnxcustom.utils.onnx_helper import onnx_rename_weights
from skl2onnx import to_onnx
from sklearn.datasets import make_regression
from sklearn.neural_network import MLPRegressor

from onnxcustom import get_max_opset


def main(rows: int, passes: int, plot: Path | None = None) -> dict[str, Any]:
    """How long passes take, where."""
    X, y = make_regression(rows, n_features=100, bias=2, random_state=0)
    X, y = X.astype(np.float32), (y / y.std()).astype(np.float32)
    network = MLPRegressor(hidden_layer_sizes=(50, 10), random_state=0).partial_fit(X, y)
    graph = onnx_rename_weights(to_onnx(network, X[:1], target_opset=get_max_opset()))
    devices = ["cpu"]
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        devices.append("cuda")
    else:
        print("There is no CUDA here: onnxruntime has", ", ".join(onnxruntime.get_available_providers()))
    losses = {}
    for device in devices:
        np.random.seed(0)
        model = OrtGradientForwardBackwardOptimizer(
            graph, learning_rate=5e-3, max_iter=passes, batch_size=15, warm_start=True, device=device
        )
        began = time.perf_counter()
        losses[device] = model.fit(X, y).train_losses_
        print(f"{device}: {(time.perf_counter() - began) / passes * 1000:.1f} ms a pass")
    curves.plot(plot, "Half squared error", losses)
    return losses


if __name__ == "__main__":
    curves.start(main, rows=1000, passes=20)

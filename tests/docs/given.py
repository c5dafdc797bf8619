"""Writes the files that commands in the documents are given: `python given.py model.onnx data.csv`."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import onnx


def model(path: str) -> None:
    """Scores of three classes from four numbers."""
    random = np.random.default_rng(0)
    network = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        found (float[batch, 4] x) => (float[batch, 3] scores) {
            h = MatMul(x, body_weight)  r = Relu(h)  s = MatMul(r, head_weight)  scores = Add(s, head_bias)
        }
    """)
    for name, shape in {"body_weight": (4, 16), "head_weight": (16, 3), "head_bias": (3,)}.items():
        weight = (random.normal(size=shape) * 0.3).astype(np.float32)
        network.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    onnx.save(network, path)


def data(path: str) -> None:
    """Four measures of flowers, and their species."""
    from sklearn.datasets import load_iris

    flowers = load_iris(as_frame=True)
    table = flowers.data.assign(species=flowers.target_names[flowers.target])
    table.to_csv(path, index=False)


WRITERS: dict[str, Callable[[str], None]] = {"model.onnx": model, "data.csv": data}

if __name__ == "__main__":
    for name in sys.argv[1:]:
        WRITERS[name](name)

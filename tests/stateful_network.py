"""A small model with every kind of state that training replaces."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper


def stateful_network(inputs: int = 4) -> onnx.ModelProto:
    """Every kind of state: parameters, running statistics, and the seed of a Dropout."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        net (float[N, {inputs}] x) => (float[N, 3] y) {{
            h = MatMul(x, w1)
            n, mean_1, var_1 = BatchNormalization<training_mode = 1>(h, scale, shift, mean, var)
            d = Dropout(n, ratio, on)
            y = MatMul(d, w2)
        }}
    """)
    random = np.random.default_rng(0)
    weights = {"w1": random.normal(size=(inputs, 6)), "w2": random.normal(size=(6, 3)), "ratio": 0.25}
    weights |= {"scale": np.ones(6), "shift": np.zeros(6), "mean": np.full(6, 0.5), "var": np.full(6, 2.0)}
    tensors = {name: np.asarray(array, np.float32) for name, array in weights.items()} | {"on": np.array(True)}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in tensors.items())
    return model

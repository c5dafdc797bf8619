"""Small models and data for tests of the trainer."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper


def classifier(*, dropout: bool = False, normalised: bool = False) -> onnx.ModelProto:
    """x `[N, 4]` to scores `[N, 3]` through a hidden layer of 16."""
    inner = "a"
    middle = ""
    if normalised:
        middle += f"n, m, v = BatchNormalization <training_mode = 1> ({inner}, gain, shift, mean, variance) "
        inner = "n"
    if dropout:
        middle += f"d = Dropout ({inner}, ratio, mode) "
        inner = "d"
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        net (float[N, 4] x) => (float[N, 3] scores) {{
            h = MatMul(x, w1)  a = Add(h, b1)  {middle} r = Relu({inner})  s = MatMul(r, w2)  scores = Add(s, b2)
        }}
    """)
    random = np.random.default_rng(0)
    for name, shape in {"w1": (4, 16), "b1": (16,), "w2": (16, 3), "b2": (3,)}.items():
        weight = (random.normal(size=shape) * 0.3).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    extra: dict[str, np.ndarray] = {}
    if normalised:
        extra |= {"gain": np.ones(16), "shift": np.zeros(16), "mean": np.zeros(16), "variance": np.ones(16)}
        extra = {name: array.astype(np.float32) for name, array in extra.items()}
    if dropout:
        extra |= {"ratio": np.array(0.3, np.float32), "mode": np.array(True)}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in extra.items())
    return model


def regressor() -> onnx.ModelProto:
    """x `[N, 4]` to y `[N, 1]`."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        net (float[N, 4] x) => (float[N, 1] y) { h = MatMul(x, w)  y = Add(h, b) }
    """)
    random = np.random.default_rng(1)
    for name, shape in {"w": (4, 1), "b": (1,)}.items():
        weight = random.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    return model


def labelled(rows: int = 100, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Data for `classifier` that can be learned."""
    x = np.random.default_rng(seed).normal(size=(rows, 4)).astype(np.float32)
    return x, np.argmax(x[:, :3], axis=1)

"""Small models for the tests of reports."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

WEIGHT = np.array([[0.5, -1.0], [2.0, 0.25]], np.float32)
VECTOR = np.array([0.5, -1.0], np.float32)


def model(text: str, opset: int = 17, domains: str = "", **weights: np.ndarray) -> onnx.ModelProto:
    header = f'<ir_version: 8, opset_import: ["" : {opset}{domains}]>'
    parsed = onnx.parser.parse_model(text if text.startswith("<") else header + text)
    parsed.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return parsed


def layer() -> onnx.ModelProto:
    """y = relu(x w + b) with a dynamic batch."""
    return model(
        "layer (float[N, 2] x) => (float[N, 2] y) { a = MatMul(x, w) c = Add(a, b) y = Relu(c) }", w=WEIGHT, b=VECTOR
    )

"""Small models to train, and data for them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser

# y = X coef + intercept, written as skl2onnx writes a LinearRegression without its operator: with an integer
# initializer, which is no weight.
LINEAR = """
<ir_version: 8, opset_import: ["" : 15]>
linear ({kind}[N, 3] X) => ({kind}[N, 1] variable)
<{kind}[3, 1] coef = {{0.1, 0.2, 0.3}}, {kind}[1] intercept = {{0.5}}, int64[2] shape_tensor = {{-1, 1}}>
{{
    multiplied = MatMul(X, coef)
    resh = Add(multiplied, intercept)
    variable = Reshape(resh, shape_tensor)
}}
"""


def linear(kind: str = "float") -> onnx.ModelProto:
    if kind != "float16":
        return onnx.parser.parse_model(LINEAR.format(kind=kind))
    # The parser reads no numbers of this type.
    model = linear()
    for tensor in model.graph.initializer[:2]:
        array = onnx.numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    return model


def network(hidden: int = 5, features: int = 3, seed: int = 0) -> onnx.ModelProto:
    """tanh(X A + a) B + b; its weights are called as those that `onnx_rename_weights` leaves."""
    draw = np.random.default_rng(seed)
    shapes = {"I0_A": (features, hidden), "I1_a": (hidden,), "I2_B": (hidden, 1), "I3_b": (1,)}
    weights = [
        onnx.numpy_helper.from_array(draw.normal(size=shape).astype(np.float32) * 0.5, name)
        for name, shape in shapes.items()
    ]
    model = onnx.parser.parse_model(
        f"""
        <ir_version: 8, opset_import: ["" : 15]>
        network (float[N, {features}] X) => (float[N, 1] Y)
        {{
            s = MatMul(X, I0_A)
            z = Add(s, I1_a)
            h = Tanh(z)
            t = MatMul(h, I2_B)
            Y = Add(t, I3_b)
        }}
        """
    )
    model.graph.initializer.extend(weights)
    return model


def data(rows: int = 60, dtype: type = np.float32, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features and targets that a line fits well."""
    draw = np.random.default_rng(seed)
    X = draw.normal(size=(rows, 3)).astype(dtype)
    y = X @ np.array([1.0, -2.0, 0.5], dtype) + 0.7 + 0.01 * draw.normal(size=rows).astype(dtype)
    return X, y.astype(dtype)

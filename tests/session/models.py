"""Models with a loss, and numbers that are the same everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

from onward.session import TrainingParameters

LEARNING_RATE = "Learning_Rate"


def model_of(text: str, weights: Mapping[str, Any] | None = None, opset: int = 15) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
    for name, value in (weights or {}).items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return model


def wave(*shape: int) -> np.ndarray:
    size = int(np.prod(shape))
    return (np.sin(np.arange(size) * 1.7 + len(shape)).reshape(shape) * 0.8).astype(np.float32)


REGRESSION = """g (float[N,2] X, float[N,1] label) => (float[1,1] loss, float[N,1] Y) {
    h = MatMul(X, coef) Y = Add(h, intercept) d = Sub(Y, label) e = Mul(d, d) loss = ReduceSum<keepdims=1>(e) }"""
WEIGHTS = {"coef": np.array([[1.0], [2.0]], np.float32), "intercept": np.array([0.5], np.float32)}


def regression() -> onnx.ModelProto:
    return model_of(REGRESSION, WEIGHTS)


def parameters(names: Sequence[str], optimizer: str = "SGDOptimizer", **fields: Any) -> TrainingParameters:
    made = TrainingParameters()
    made.loss_output_name = "loss"
    made.weights_to_train = set(names)
    made.training_optimizer_name = optimizer
    made.optimizer_attributes_map = {name: {} for name in names}
    made.optimizer_int_attributes_map = {name: {} for name in names}
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def batch(rows: int = 6, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 2)).astype(np.float32)
    return {"X": x, "label": (x @ [[3], [-1]] + 1).astype(np.float32)}


def rate(value: float) -> dict[str, np.ndarray]:
    return {LEARNING_RATE: np.array([value], np.float32)}

"""Small models and their artifacts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from onward import artifacts
from onward.api import CheckpointState, Module, Optimizer

MLP = """<ir_version: 8, opset_import: ["" : 17]>
mlp (float[N, 4] input) => (float[N, 3] output) {
    hidden = Gemm<transB = 1>(input, fc1.weight, fc1.bias)
    active = Relu(hidden)
    output = Gemm<transB = 1>(active, fc2.weight, fc2.bias)
}"""
MLP_SHAPES = {"fc1.weight": (5, 4), "fc1.bias": (5,), "fc2.weight": (3, 5), "fc2.bias": (3,)}

CNN = """<ir_version: 8, opset_import: ["" : 17]>
cnn (float[N, 2, 6, 6] image) => (float[N, 3] output) {
    c = Conv<pads = [1, 1, 1, 1]>(image, conv.weight, conv.bias)
    n, mean_new, var_new = BatchNormalization<training_mode = 1>(c, norm.weight, norm.bias, norm.mean, norm.var)
    a = Relu(n)
    p = GlobalAveragePool(a)
    f = Flatten(p)
    output = Gemm<transB = 1>(f, fc.weight, fc.bias)
}"""
CNN_SHAPES = {
    "conv.weight": (4, 2, 3, 3), "conv.bias": (4,), "norm.weight": (4,), "norm.bias": (4,), "norm.mean": (4,),
    "norm.var": (4,), "fc.weight": (3, 4), "fc.bias": (3,),
}  # fmt: skip


def with_weights(text: str, shapes: dict[str, tuple[int, ...]], dtype: type = np.float32) -> onnx.ModelProto:
    # The text format does not allow dots in names.
    for name in shapes:
        text = text.replace(name, name.replace(".", "__"))
    model = onnx.parser.parse_model(text)
    for node in model.graph.node:
        node.input[:] = [name.replace("__", ".") for name in node.input]
    random = np.random.default_rng(0)
    for name, shape in shapes.items():
        array = random.normal(size=shape) * 0.5
        array = np.ones(shape) if name.endswith(".var") else array
        model.graph.initializer.append(numpy_helper.from_array(array.astype(dtype), name))
    return model


def mlp() -> onnx.ModelProto:
    return with_weights(MLP, MLP_SHAPES)


def cnn() -> onnx.ModelProto:
    return with_weights(CNN, CNN_SHAPES)


def with_dropout(model: onnx.ModelProto, value: str) -> onnx.ModelProto:
    """Dropout of a value on its way to the nodes that use it."""
    for node in model.graph.node:
        node.input[:] = ["dropped" if name == value else name for name in node.input]
    at = next(index for index, node in enumerate(model.graph.node) if value in node.output) + 1
    model.graph.node.insert(at, onnx.helper.make_node("Dropout", [value, "ratio", "on"], ["dropped"], "drop"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(0.4, np.float32), "ratio"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "on"))
    return model


def batch(seed: int = 0, size: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels for the MLP."""
    random = np.random.default_rng(seed)
    return random.normal(size=(size, 4)).astype(np.float32), random.integers(0, 3, size)


def images(seed: int = 0, size: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels for the CNN."""
    random = np.random.default_rng(seed)
    return random.normal(size=(size, 2, 6, 6)).astype(np.float32), random.integers(0, 3, size)


@dataclass
class Run:
    """A state, a module and an optimizer over the files of a directory."""

    folder: Path
    state: CheckpointState
    module: Module
    optimizer: Optimizer

    @classmethod
    def open(cls, folder: Path, checkpoint: str | Path = "checkpoint", **options: object) -> Run:
        state = CheckpointState.load_checkpoint(folder / checkpoint)
        module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx", **options)  # type: ignore[arg-type]
        return cls(folder, state, module, Optimizer(folder / "optimizer_model.onnx", module))

    def train(self, count: int, start: int = 0, data: object = batch) -> list[float]:
        losses = []
        for step in range(start, start + count):
            losses.append(float(self.module(*data(step))))  # type: ignore[operator]
            self.optimizer.step()
            self.module.lazy_reset_grad()
        return losses

    def values(self) -> dict[str, np.ndarray]:
        return {name: parameter.data.copy() for name, parameter in self.state.parameters}


def generate(folder: Path, model: onnx.ModelProto, **options: object) -> Path:
    settings: dict[str, object] = {"loss": artifacts.LossType.CrossEntropyLoss, "optimizer": "adamw_hf", **options}
    artifacts.generate_artifacts(model, artifact_directory=folder, **settings)  # type: ignore[arg-type]
    return folder

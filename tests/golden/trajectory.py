"""One training run through the names of `onnxruntime.training`, which both packages have.

`record.py` runs it with the original in an environment of its own, the test with ours: only the import differs.
numpy 1 and onnx 1.16 have to understand this file.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).parent
STEPS = 20
RECORDED = (1, 2, 5, 10, 20)  # the steps after which gradients and parameters are written down
BATCH = 8
CLASSES = 4
LEARNING_RATES = {"adamw": 0.01, "sgd": 0.2}
MAX_NORM = 0.25  # below the norms of nearly all gradients here, so that clipping does something


class Case(NamedTuple):
    """One recorded run."""

    model: str
    optimizer: str
    clip: bool = False
    batches: int = 1  # whose gradients are added up before each update

    @property
    def name(self) -> str:
        return f"{self.model}-{self.optimizer}{'-clip' if self.clip else ''}{'-accumulate' * (self.batches > 1)}"


CASES = [
    Case(model, optimizer, clip, batches)
    for model in ("mlp", "cnn")
    for optimizer in ("adamw", "sgd")
    for clip, batches in ((False, 1), (True, 1), (False, 2), (True, 2))
]
SHAPES = {"mlp": (6,), "cnn": (2, 6, 6)}


def mlp() -> onnx.ModelProto:
    """6 - 10 - 4 with Relu."""
    return _model(
        "mlp",
        [
            helper.make_node("Gemm", ["x", "fc1.weight", "fc1.bias"], ["h"], "fc1", transB=1),
            helper.make_node("Relu", ["h"], ["a"], "relu"),
            helper.make_node("Gemm", ["a", "fc2.weight", "fc2.bias"], ["scores"], "fc2", transB=1),
        ],
        {"fc1.weight": (10, 6), "fc1.bias": (10,), "fc2.weight": (CLASSES, 10), "fc2.bias": (CLASSES,)},
    )


def cnn() -> onnx.ModelProto:
    """Padded and strided convolutions, Relu and Sigmoid, MaxPool, Gemm."""
    return _model(
        "cnn",
        [
            helper.make_node("Conv", ["x", "c1.weight", "c1.bias"], ["h1"], "c1", kernel_shape=[3, 3], pads=[1] * 4),
            helper.make_node("Relu", ["h1"], ["a1"], "relu"),
            helper.make_node("MaxPool", ["a1"], ["p1"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
            helper.make_node("Conv", ["p1", "c2.weight", "c2.bias"], ["h2"], "c2", kernel_shape=[2, 2], strides=[1, 1]),
            helper.make_node("Sigmoid", ["h2"], ["a2"], "sigmoid"),
            helper.make_node("Flatten", ["a2"], ["flat"], "flatten"),
            helper.make_node("Gemm", ["flat", "fc.weight", "fc.bias"], ["scores"], "fc", transB=1),
        ],
        {
            "c1.weight": (3, 2, 3, 3),
            "c1.bias": (3,),
            "c2.weight": (4, 3, 2, 2),
            "c2.bias": (4,),
            "fc.weight": (CLASSES, 16),
            "fc.bias": (CLASSES,),
        },
    )


def _model(name, nodes, shapes) -> onnx.ModelProto:
    rng = np.random.default_rng(7)
    parameters = [
        numpy_helper.from_array((rng.normal(size=shape) * 0.4).astype(np.float32), key) for key, shape in shapes.items()
    ]
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *SHAPES[name]])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", CLASSES])],
        parameters,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


def data(case: Case):
    """The batches of a run, one pair after the other; the class is the largest of the first few inputs."""
    rng = np.random.default_rng(11)
    for _ in range(STEPS * case.batches):
        x = rng.normal(size=(BATCH, *SHAPES[case.model])).astype(np.float32)
        yield x, x.reshape(BATCH, -1)[:, :CLASSES].argmax(axis=1)


def run(case: Case, training: SimpleNamespace) -> dict[str, np.ndarray]:
    """Losses of every batch; gradients before and parameters after the update, of the recorded steps.

    `training` has the modules `artifacts`, `onnxblock` and `api` of one of the packages.
    """
    model = onnx.load(str(HERE / f"{case.model}.onnx"))
    clip = training.onnxblock.optim.ClipGradNorm(MAX_NORM) if case.clip else None
    if case.optimizer == "adamw":
        optimizer_block = training.onnxblock.optim.AdamW(weight_decay=0.05, clip_grad=clip)
    else:
        optimizer_block = training.onnxblock.optim.SGD(clip_grad=clip)
    names = [tensor.name for tensor in model.graph.initializer]
    losses: list[float] = []
    recorded: dict[str, list[np.ndarray]] = {}
    with tempfile.TemporaryDirectory() as folder:
        training.artifacts.generate_artifacts(
            model,
            requires_grad=names,
            loss=training.artifacts.LossType.CrossEntropyLoss,
            optimizer=optimizer_block,
            artifact_directory=folder,
        )
        state = training.api.CheckpointState.load_checkpoint(f"{folder}/checkpoint")
        module = training.api.Module(f"{folder}/training_model.onnx", state, f"{folder}/eval_model.onnx")
        optimizer = training.api.Optimizer(f"{folder}/optimizer_model.onnx", module)
        optimizer.set_learning_rate(LEARNING_RATES[case.optimizer])
        batches = data(case)
        module.train()
        for step in range(1, STEPS + 1):
            for _ in range(case.batches):
                losses.append(float(module(*next(batches))))
            gradients = {f"gradient/{name}": np.array(state.parameters[name].grad) for name in names}
            optimizer.step()
            module.lazy_reset_grad()
            parameters = {f"parameter/{name}": np.array(state.parameters[name].data) for name in names}
            if step in RECORDED:
                for key, array in {**gradients, **parameters}.items():
                    recorded.setdefault(key, []).append(array)
    return {"losses": np.array(losses, np.float32), **{key: np.stack(arrays) for key, arrays in recorded.items()}}

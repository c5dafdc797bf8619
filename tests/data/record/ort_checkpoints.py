"""Record small checkpoints of onnxruntime-training, and what its training makes of them.

Needs an environment of its own, because the package replaces onnxruntime:

    python -m venv peer && peer/bin/pip install "onnxruntime-training-cpu==1.19.2" "numpy<2" "onnx<1.17" torch
    peer/bin/python tests/data/record/ort_checkpoints.py tests/data
    peer/bin/python tests/data/record/ort_checkpoints.py --read <folder with checkpoints that onward wrote>

The second form reads checkpoints instead, and prints what the original finds in them as JSON. 1.17.3 is the newest
release that writes version 1 of the format.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.training import artifacts
from onnxruntime.training.api import CheckpointState, Module, Optimizer

TRAINABLE, FROZEN = ["fc1.weight", "fc2.weight", "fc2.bias"], ["fc1.bias"]
BATCHES = [
    (
        np.random.default_rng(step).normal(size=(5, 4)).astype(np.float32),
        np.random.default_rng(100 + step).integers(0, 2, 5),
    )
    for step in range(6)
]


def mlp() -> onnx.ModelProto:
    random = np.random.default_rng(0)
    shapes = {"fc1.weight": (3, 4), "fc1.bias": (3,), "fc2.weight": (2, 3), "fc2.bias": (2,)}
    weights = [numpy_helper.from_array(random.normal(size=s).astype(np.float32), n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Gemm", ["input", "fc1.weight", "fc1.bias"], ["hidden"], transB=1),
        helper.make_node("Tanh", ["hidden"], ["active"]),
        helper.make_node("Gemm", ["active", "fc2.weight", "fc2.bias"], ["output"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["N", 2])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)


def generate(folder: Path, optimizer: artifacts.OptimType, **options: bool) -> None:
    artifacts.generate_artifacts(
        mlp(),
        requires_grad=TRAINABLE,
        frozen_params=FROZEN,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=optimizer,
        artifact_directory=str(folder),
        **options,
    )


def load(folder: Path, checkpoint: Path) -> tuple:
    state = CheckpointState.load_checkpoint(str(checkpoint))
    module = Module(str(folder / "training_model.onnx"), state, str(folder / "eval_model.onnx"))
    return state, module, Optimizer(str(folder / "optimizer_model.onnx"), module)


def train(module: Module, optimizer: Optimizer, batches: list) -> list[float]:
    losses = []
    for batch in batches:
        losses.append(float(module(*batch)))
        optimizer.step()
        module.lazy_reset_grad()
    return losses


def parameters(state: CheckpointState) -> dict:
    return {name: parameter.data.tolist() for name, parameter in state.parameters}


def record(target: Path) -> None:
    title = f"ort-{onnxruntime.__version__}-mlp"
    nominal = {"nominal_checkpoint": True} if onnxruntime.__version__ >= "1.18" else {}
    for optimizer in (artifacts.OptimType.AdamW, artifacts.OptimType.SGD):
        name = f"{title}-{optimizer.name.lower()}"
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            generate(folder, optimizer, **nominal)
            if optimizer is artifacts.OptimType.AdamW:
                (target / f"{title}-generated").write_bytes((folder / "checkpoint").read_bytes())
                if nominal:
                    (target / f"{title}-nominal").write_bytes((folder / "nominal_checkpoint").read_bytes())
            state, module, stepper = load(folder, folder / "checkpoint")
            losses = train(module, stepper, BATCHES[:3])
            for key, value in (("epoch", 7), ("score", 0.25), ("name", "größe"), ("negative", -3)):
                state.properties[key] = value
            CheckpointState.save_checkpoint(state, str(target / name), include_optimizer_state=True)
            saved = parameters(state)
            state, module, stepper = load(folder, target / name)
            losses += train(module, stepper, BATCHES[3:])
            expected = {"losses": losses, "saved": saved, "resumed": parameters(state)}
            (target / f"{name}.json").write_text(json.dumps(expected, indent=1) + "\n", "utf-8")


def read(folder: Path) -> None:
    found = {}
    with tempfile.TemporaryDirectory() as temporary:
        artifact_folder = Path(temporary)
        generate(artifact_folder, artifacts.OptimType.AdamW)
        for checkpoint in sorted(folder.iterdir()):
            if checkpoint.suffix:
                continue
            state = CheckpointState.load_checkpoint(str(checkpoint))
            found[checkpoint.name] = {"properties": dict(state.properties), "parameters": len(state.parameters)}
            if "nominal" in checkpoint.name:
                continue
            found[checkpoint.name]["saved"] = parameters(state)
            if "sgd" not in checkpoint.name:
                state, module, stepper = load(artifact_folder, checkpoint)
                found[checkpoint.name]["losses"] = train(module, stepper, BATCHES[3:])
                found[checkpoint.name]["resumed"] = parameters(state)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    if sys.argv[1] == "--read":
        read(Path(sys.argv[2]))
    else:
        record(Path(sys.argv[1]))

"""`generate_artifacts(plain_tensors=True)`: files that languages without sequences and metadata can train with."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from safetensors import safe_open

import onward
from onward import onnxblock, optim
from onward.api import CheckpointState, Module, Optimizer
from onward.artifacts import generate_artifacts
from tests.stateful_network import stateful_network

RANDOM = np.random.default_rng(1)
X, TARGET = (RANDOM.normal(size=(8, size)).astype(np.float32) for size in (5, 3))


def network(names: dict[str, str] | None = None) -> onnx.ModelProto:
    """Parameters, running statistics and a Dropout."""
    model = stateful_network(inputs=5)
    for node in model.graph.node:
        node.input[:] = [(names or {}).get(name, name) for name in node.input]
    for tensor in model.graph.initializer:
        tensor.name = (names or {}).get(tensor.name, tensor.name)
    return model


class Driver:
    """Training by onnxruntime and what the manifest says, without onward: what a program in JavaScript does."""

    def __init__(self, folder: Path) -> None:
        self.manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
        files = self.manifest["files"]
        for file in files.values():
            assert hashlib.sha256((folder / file["file"]).read_bytes()).hexdigest() == file["sha256"]
        self.sessions = {
            what: onnxruntime.InferenceSession(folder / files[f"{what}_model"]["file"])
            for what in ("training", "eval", "optimizer")
        }
        with safe_open(folder / files["checkpoint"]["file"], "np") as checkpoint:
            self.tensors = {name: checkpoint.get_tensor(name) for name in checkpoint.keys()}  # noqa: SIM118
        slots = self.manifest["optimizer"]["slots"]
        self.slots = {
            (value["of"], value["slot"]): np.full(value["shape"], slots[value["slot"]]["initial"], value["type"])
            for value in self.manifest["optimizer"]["inputs"]
            if value["role"] == "slot"
        }
        self.gradients: dict[str, np.ndarray] = {}
        self.passes = self.steps = 0

    def train(self, user: dict[str, np.ndarray], *, reset: bool = True) -> float:
        feeds = {}
        for value in self.manifest["training"]["inputs"]:
            name, role = value["name"], value["role"]
            if role == "gradient":
                feeds[name] = self.gradients.get(value["of"], np.zeros(value["shape"], value["type"]))
            else:
                feeds[name] = {
                    "input": user.get(name),
                    "target": user.get(name),
                    "parameter": self.tensors.get(name),
                    "buffer": self.tensors.get(name),
                    "reset": np.array([reset]),
                    "seed": np.array(0),
                    "pass": np.array(self.passes),
                }[role]
        results = self._run("training", feeds)
        self.passes += 1
        for value, result in results:
            if value["role"] == "gradient":
                self.gradients[value["of"]] = result
            elif value["role"] == "buffer":
                self.tensors[value["of"]] = result
        return float(next(result for value, result in results if value["role"] == "loss"))

    def update(self, rate: float) -> None:
        self.steps += 1
        scalars = {"learning_rate": np.array([rate], np.float32), "step": np.array([self.steps])}
        feeds = {}
        for value in self.manifest["optimizer"]["inputs"]:
            name, role, of = value["name"], value["role"], value.get("of")
            if role == "slot":
                feeds[name] = self.slots[of, value["slot"]]
            elif role in scalars:
                feeds[name] = scalars[role]
            else:
                feeds[name] = self.gradients[of] if role == "gradient" else self.tensors[name]
        for value, result in self._run("optimizer", feeds):
            if value["role"] == "parameter":
                self.tensors[value["of"]] = result
            elif value["role"] == "slot":
                self.slots[value["of"], value["slot"]] = result

    def evaluate(self, user: dict[str, np.ndarray]) -> float:
        feeds = {x["name"]: {**self.tensors, **user}[x["name"]] for x in self.manifest["evaluation"]["inputs"]}
        return float(self._run("eval", feeds)[0][1])

    def _run(self, what: str, feeds: dict[str, Any]) -> list[tuple[dict[str, Any], np.ndarray]]:
        outputs = self.manifest["evaluation" if what == "eval" else what]["outputs"]
        return list(zip(outputs, self.sessions[what].run([x["name"] for x in outputs], feeds), strict=True))


@pytest.mark.parametrize(
    "optimizer",
    [optim.adamw(), optim.sgd(momentum=0.9, clip=0.5), optim.lamb(), optim.adadelta(), "AdamW"],
    ids=["adamw", "clipped", "lamb", "adadelta", "AdamW"],
)
def test_manifest_is_all_that_a_program_needs(tmp_path: Path, optimizer: Any):
    options = {"loss": "mse", "optimizer": optimizer}
    plain = generate_artifacts(network(), artifact_directory=tmp_path / "plain", plain_tensors=True, **options)
    sequences = generate_artifacts(network(), artifact_directory=tmp_path / "sequences", **options)
    assert plain.optimizer_model is not None
    assert not any(value.type.HasField("sequence_type") for value in plain.optimizer_model.graph.input)
    target = next(x.name for x in plain.eval_model.graph.input if x.name not in ("x", *plain.trainable, *plain.frozen))
    driver, modules = Driver(tmp_path / "plain"), []
    for made in (plain, sequences):
        state = CheckpointState.load_checkpoint(made.paths["checkpoint"])
        module = Module(made.paths["training_model"], state, made.paths["eval_model"])
        modules.append((module, Optimizer(made.paths["optimizer_model"], module)))
    for number in range(6):
        losses = []
        for module, update in modules:
            module.train()
            losses.append(module(X, TARGET))
            update.set_learning_rate(0.01)
            if number % 2:  # two batches for a step
                update.step()
                module.lazy_reset_grad()
        losses.append(driver.train({"x": X, target: TARGET}, reset=number % 2 == 0))
        if number % 2:
            driver.update(0.01)
        np.testing.assert_allclose(losses, losses[0], rtol=1e-6)
    assert losses[0] > 0
    module = modules[0][0]
    for name, parameter in state.parameters:
        np.testing.assert_allclose(driver.tensors[name], parameter.data, rtol=2e-6, atol=1e-7)
    module.eval()
    np.testing.assert_allclose(driver.evaluate({"x": X, target: TARGET}), module(X, TARGET), rtol=1e-6)


def test_parameters_are_in_the_order_of_the_buffer(tmp_path: Path):
    made = generate_artifacts(
        network(), frozen_params=["w1"], loss="mse", optimizer="SGD", artifact_directory=tmp_path, prefix="a_",
        plain_tensors=True,
    )  # fmt: skip
    manifest = json.loads(made.paths["manifest"].read_text("utf-8"))
    assert made.paths["manifest"].name == "a_manifest.json"
    state = CheckpointState.load_checkpoint(made.paths["checkpoint"])
    module = Module(made.paths["training_model"], state, made.paths["eval_model"])
    buffer, start = module.get_contiguous_parameters().numpy(), 0
    for parameter in manifest["parameters"]:
        size = int(np.prod(parameter["shape"]))
        values = np.asarray(state.parameters[parameter["name"]].data).reshape(-1)
        np.testing.assert_array_equal(buffer[start : start + size], values)
        assert parameter["trainable"] == (parameter["name"] in made.trainable)
        start += size
    assert start == len(buffer)


def test_names_that_are_taken(tmp_path: Path):
    """Parameters that are called as inputs of the optimizer are, as a slot of another, and as its flag."""
    names = {"w1": "step", "w2": "learning_rate", "shift": "scale.mu", "mean": "updated_flag"}
    for folder, renamed in (("plain", None), ("taken", names)):
        generate_artifacts(
            network(renamed), loss="mse", optimizer="adamw", artifact_directory=tmp_path / folder, plain_tensors=True
        )
    losses = []
    for folder in ("plain", "taken"):
        driver = Driver(tmp_path / folder)
        target = next(x["name"] for x in driver.manifest["evaluation"]["inputs"] if x["role"] == "target")
        made = []
        for _ in range(4):
            made.append(driver.train({"x": X, target: TARGET}))
            driver.update(0.05)
        losses.append(made)
    assert losses[0] == losses[1]
    assert len(set(losses[0])) == 4


def test_a_parameter_called_as_the_gradient_of_another(tmp_path: Path):
    with pytest.raises(onward.OnwardError, match="'w1_grad', which has to be the name of the gradient of 'w1'"):
        generate_artifacts(network({"w2": "w1_grad"}), loss="mse", artifact_directory=tmp_path)


def test_without_an_optimizer(tmp_path: Path):
    made = generate_artifacts(network(), loss="mse", artifact_directory=tmp_path, plain_tensors=True)
    manifest = json.loads(made.paths["manifest"].read_text("utf-8"))
    assert manifest["optimizer"] is None
    assert manifest["files"]["optimizer_model"] is None


def test_blocks_of_other_origin_are_refused(tmp_path: Path):
    class Own(onnxblock.ForwardBlock):
        def build(self, parameters: Any) -> str:
            return ""

    with pytest.raises(onward.OnwardError, match="Own is a block that writes its own model"):
        generate_artifacts(
            network(), loss="mse", optimizer=Own(), artifact_directory=tmp_path / "none", plain_tensors=True
        )
    assert not (tmp_path / "none").exists()

"""onward-web's TrainingSession trains as Module and Optimizer do: losses, statistics, masks of Dropout, parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from safetensors.numpy import load_file, save_file

from onward.api import CheckpointState, Module, Optimizer
from onward.artifacts import Artifacts, generate_artifacts
from tests.edge.web_models import needs_web, run_node

PACKAGES = [
    "onnxruntime-node",
    "onnxruntime-web",
    pytest.param("onnxruntime-node-oldest", marks=pytest.mark.slow),
    pytest.param("onnxruntime-web-oldest", marks=pytest.mark.slow),
]
STEPS, ACCUMULATED = 8, 2

pytestmark = [*needs_web, pytest.mark.usefixtures("built")]

RANDOM = np.random.default_rng(3)
X, LABELS = RANDOM.normal(size=(8, 5)).astype(np.float32), np.arange(8) % 3


def network() -> onnx.ModelProto:
    """Trained and frozen parameters, running statistics and a Dropout."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        net (float[N, 5] x) => (float[N, 3] y) {
            h = MatMul(x, w1)
            n, mean_1, var_1 = BatchNormalization<training_mode = 1>(h, scale, shift, mean, var)
            d = Dropout(n, ratio, on)
            s = MatMul(d, w2)
            y = Add(s, b)
        }
    """)
    random = np.random.default_rng(0)
    weights = {"w1": random.normal(size=(5, 6)), "w2": random.normal(size=(6, 3)), "b": np.ones(3), "ratio": 0.25}
    weights |= {"scale": np.ones(6), "shift": np.zeros(6), "mean": np.full(6, 0.5), "var": np.full(6, 2.0)}
    tensors = {name: np.asarray(array, np.float32) for name, array in weights.items()} | {"on": np.array(True)}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in tensors.items())
    return model


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    place = tmp_path_factory.mktemp("artifacts")
    return generate_artifacts(
        network(), requires_grad=["w1", "w2", "scale", "shift"], frozen_params=["b"], loss="cross_entropy",
        optimizer="adamw", artifact_directory=place, prefix="my_", plain_tensors=True,
        additional_output_names=["y"],
    )  # fmt: skip


def in_python(made: Artifacts, checkpoint: Path) -> tuple[list[float], list[float], Module, CheckpointState]:
    state = CheckpointState.load_checkpoint(checkpoint)
    module = Module(made.paths["training_model"], state, made.paths["eval_model"])
    optimizer = Optimizer(made.paths["optimizer_model"], module)
    losses, evaluated = [], []
    for step in range(STEPS):
        optimizer.set_learning_rate(0.05 if step < 4 else 0.01)
        for part in range(ACCUMULATED):
            module.train()
            rows = slice(4 * part, 4 * part + 4)
            losses.append(float(_first(module(X[rows], LABELS[rows]))))
        optimizer.step()
        module.lazy_reset_grad()
        module.eval()
        evaluated.append(float(_first(module(X, LABELS))))
    return losses, evaluated, module, state


def _first(values: Any) -> Any:
    return values[0] if isinstance(values, (list, tuple)) else values


def in_node(package: str, made: Artifacts, checkpoint: Path, out: Path) -> dict[str, Any]:
    names = [x.name for x in made.eval_model.graph.input if x.name not in (*made.trainable, *made.frozen)]
    data = out.parent / "data"
    save_file(dict(zip([name for name in names if name in ("x", "labels")], (X, LABELS), strict=True)), data)
    folder = made.paths["training_model"].parent
    settings = json.dumps({"steps": STEPS, "accumulated": ACCUMULATED})
    return json.loads(run_node("test/session.mjs", package, folder, checkpoint, data, settings, out))


@pytest.mark.parametrize("package", PACKAGES)
def test_equals_module_and_optimizer(package: str, artifacts: Artifacts, tmp_path: Path) -> None:
    losses, evaluated, module, state = in_python(artifacts, artifacts.paths["checkpoint"])
    result = in_node(package, artifacts, artifacts.paths["checkpoint"], tmp_path / "out")
    np.testing.assert_allclose(result["losses"], losses, rtol=1e-5)
    np.testing.assert_allclose(result["evaluated"], evaluated, rtol=1e-5)
    assert losses[-1] < losses[0]
    for trainable_only in (True, False):
        expected = module.get_contiguous_parameters(trainable_only).numpy()
        found = load_file(tmp_path / "out")["trainable" if trainable_only else "all"]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
        assert result["sizes"]["trainable" if trainable_only else "all"] == module.get_parameters_size(trainable_only)
    for mode in ("training", "evaluation"):
        module.train(mode == "training")
        assert result["names"][mode] == [module.input_names(), module.output_names()]
    assert abs(result["changed"] - result["evaluated"][-1]) > 1e-3  # what is fed as parameters counts
    assert result["restored"] == result["evaluated"][-1]
    # The optimizer's state is in the checkpoint: both go on alike.
    module.train()
    CheckpointState.save_checkpoint(state, tmp_path / "later", include_optimizer_state=True)
    again, _, _, _ = in_python(artifacts, tmp_path / "later")
    later = in_node(package, artifacts, tmp_path / "later", tmp_path / "out")
    np.testing.assert_allclose(later["losses"], again, rtol=1e-5)


@pytest.mark.parametrize("package", PACKAGES[:2])
def test_refuses(package: str, artifacts: Artifacts, tmp_path: Path) -> None:
    said = in_node(package, artifacts, artifacts.paths["checkpoint"], tmp_path / "out")["said"]
    expected = {
        "labels": "the labels labels must be from 0 to 2, but there is 3",
        "missing": "the input labels is missing; a batch has x, labels",
        "fetches": "there is no output z; there are ",
        "buffer": "the parameters are a Float32Array of 60 numbers, not 3",
        "early": "there are no gradients yet: run a training step first",
        "swapped": "my_eval_model.onnx is not the file that manifest.json describes",
        "without": "there is no optimizer model: give `optimizerModel`",
        "manifest": "give `manifest`, the manifest.json that generate_artifacts(..., plain_tensors=True) wrote",
        "released": "this training was disposed of",
    }
    assert said.keys() == expected.keys()
    for case, message in expected.items():
        assert message in said[case], case

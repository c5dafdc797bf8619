"""onward-web trains as Python does, in Node and in wasm: losses, masks of Dropout, checkpoints there and back, exports.

Needs node, and `npm ci` in web/ (`make test-web` does it).
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors.numpy import load_file, save_file

import onward.torch
from onward.edge import Training, export

WEB = Path(__file__).parents[2] / "web"
PACKAGES = ["onnxruntime-node", "onnxruntime-web"]
STEPS = 20
RANDOM = np.random.default_rng(0)

pytestmark = [
    pytest.mark.skipif(shutil.which("node") is None, reason="needs node"),
    pytest.mark.skipif(not (WEB / "node_modules").is_dir(), reason="needs `npm ci` in web/: make test-web"),
]


@dataclass(frozen=True)
class Work:
    """A module, a batch for it, and what is trained."""

    module: Callable[[], torch.nn.Module]
    x: np.ndarray
    target: np.ndarray
    loss: str = "cross_entropy"
    trainable: str | None = None


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.body, self.head = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean(dim=1))


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = torch.nn.LSTM(4, 8, batch_first=True), torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x)[0][:, -1])


def perceptron() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))


def convolutional() -> torch.nn.Module:
    """No biases before BatchNorm: their gradients are rounding errors, which Adam makes as large as the rate."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, padding=1, bias=False), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(8, 16, 3, padding=1, bias=False), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
        torch.nn.Dropout(0.25),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(16, 3),
    )  # fmt: skip


def mobile() -> torch.nn.Module:
    """Depthwise and pointwise convolutions, as in MobileNet."""
    blocks: list[torch.nn.Module] = [torch.nn.Conv2d(3, 16, 3, 2, 1), torch.nn.ReLU6()]
    for _ in range(3):
        blocks += [torch.nn.Conv2d(16, 16, 3, 1, 1, groups=16), torch.nn.ReLU6(), torch.nn.Conv2d(16, 16, 1)]
    return torch.nn.Sequential(*blocks, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(16, 3))


def normal(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


LABELS = np.arange(6, dtype=np.int64) % 3
WORKS = {
    "perceptron": Work(perceptron, normal(6, 10), LABELS),
    "convolutional": Work(convolutional, normal(6, 1, 8, 8), LABELS),
    "attention": Work(Attention, normal(6, 5, 16), LABELS),
    "recurrent": Work(Recurrent, normal(6, 7, 4), LABELS),
    "head": Work(mobile, normal(6, 3, 16, 16), LABELS, trainable="*13.*"),
}


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    run = subprocess.run(["npx", "tsc", "-p", "tsconfig.build.json"], cwd=WEB, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            work, target = WORKS[name], tmp_path_factory.mktemp(name)
            torch.manual_seed(0)
            path = target / "model.onnx"
            onward.torch.export(work.module(), (torch.from_numpy(work.x),), path, dynamic_batch=True)
            made[name] = target / "folder"
            exported = export(
                path, made[name], work.loss, "adamw", trainable=work.trainable, learning_rate=0.01, seed=5
            )
            (target_name,) = [entry["name"] for entry in exported.manifest["targets"]]
            (input_name,) = [entry["name"] for entry in exported.manifest["inputs"]]
            save_file({input_name: work.x, target_name: work.target}, target / "batch")
        return made[name]

    return make


def in_node(package: str, folder: Path, out: Path, steps: int = STEPS, checkpoint: Path | None = None) -> dict:
    command = ["node", "--expose-gc", "test/train.mjs", package, folder, folder.parent / "batch", out, str(steps)]
    command += [] if checkpoint is None else [checkpoint]
    run = subprocess.run(list(map(str, command)), cwd=WEB, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("name", WORKS)
def test_trains_as_python_does(name: str, package: str, folder: Callable[[str], Path], tmp_path: Path) -> None:
    batch = load_file(folder(name).parent / "batch")
    training = Training(folder(name))
    expected = [training.step(batch).loss for _ in range(STEPS)]
    result = in_node(package, folder(name), tmp_path / "out")
    # Relative to the first loss: the last ones are differences of larger numbers.
    np.testing.assert_allclose(result["losses"], expected, rtol=1e-5, atol=1e-5 * expected[0])
    assert expected[-1] < expected[0]
    assert result["evaluated"] == pytest.approx(training.evaluate(batch).loss, rel=1e-4, abs=1e-5)
    assert abs(result["changed"] - result["evaluated"]) > 1e-3
    # The exported file is an ordinary model, and predicts what the page predicted.
    onnx.checker.check_model(tmp_path / "out.onnx", full_check=True)
    session = onnxruntime.InferenceSession(tmp_path / "out.onnx", providers=["CPUExecutionProvider"])
    inputs = {value.name: batch[value.name] for value in session.get_inputs()}
    (predicted,) = session.run(None, inputs)
    (shown,) = load_file(tmp_path / "out.outputs").values()
    np.testing.assert_allclose(predicted, shown, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("package", PACKAGES)
def test_checkpoints_go_there_and_back(package: str, folder: Callable[[str], Path], tmp_path: Path) -> None:
    """Python, JavaScript, Python: Dropout and statistics go on as if nothing had happened."""
    place = folder("convolutional")
    batch = load_file(place.parent / "batch")
    whole = Training(place)
    expected = [whole.step(batch).loss for _ in range(9)]
    first = Training(place)
    losses = [first.step(batch).loss for _ in range(3)]
    first.save(tmp_path / "first")
    losses += in_node(package, place, tmp_path / "second", 3, tmp_path / "first")["losses"]
    third = Training(place, tmp_path / "second.safetensors")
    assert third.step_count == 6
    losses += [third.step(batch).loss for _ in range(3)]
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-5)
    if package == "onnxruntime-node":  # the same kernels
        np.testing.assert_array_equal(losses[:3], expected[:3])


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_memory_does_not_grow(package: str, folder: Callable[[str], Path], tmp_path: Path) -> None:
    half, end = in_node(package, folder("perceptron"), tmp_path / "out", 2000)["memory"]
    assert end < half + 10e6

"""Models of all kinds as exported folders, with a batch beside each, for the tests of onward-web."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import onward.torch
from onward.edge import export

WEB = Path(__file__).parents[2] / "web"
RANDOM = np.random.default_rng(0)

needs_web = [
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


def export_work(name: str, place: Path, target: str = "wasm") -> Path:
    """The folder of a model, and a file called batch beside it."""
    work = WORKS[name]
    torch.manual_seed(0)
    onward.torch.export(work.module(), (torch.from_numpy(work.x),), place / "model.onnx", dynamic_batch=True)
    exported = export(
        place / "model.onnx", place / "folder", work.loss, "adamw",
        trainable=work.trainable, learning_rate=0.01, seed=5, target=target,
    )  # fmt: skip
    (target_name,) = [entry["name"] for entry in exported.manifest["targets"]]
    (input_name,) = [entry["name"] for entry in exported.manifest["inputs"]]
    save_file({input_name: work.x, target_name: work.target}, place / "batch")
    return place / "folder"


def run_node(*command: object, timeout: float = 300, options: tuple[str, ...] = ()) -> str:
    """What a program in web/ prints."""
    run = subprocess.run(
        ["node", *options, *map(str, command)], cwd=WEB, capture_output=True, text=True, timeout=timeout
    )
    assert run.returncode == 0, run.stderr + run.stdout
    return run.stdout

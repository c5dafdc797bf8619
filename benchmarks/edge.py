"""Sizes of exported folders and times of their steps: `python -m benchmarks.edge` writes the tables of docs/edge.md.

Times are the shortest of many steps, in Python and in Node by onnxruntime-web's wasm (`make test-web` builds
onward-web, which it needs).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from safetensors.numpy import save_file

import onward.torch
from onward.edge import Exported, Training, export

ROOT = Path(__file__).parents[1]
PAGE, BEGIN, END = ROOT / "docs" / "edge.md", "<!-- make edge-table writes this -->\n", "<!-- to here -->\n"


@dataclass(frozen=True)
class Work:
    """A module, its input, and what of it is trained."""

    title: str
    module: Callable[[], torch.nn.Module]
    shape: tuple[int, ...]
    trainable: str | None = None


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
        self.body = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean(dim=1))


def perceptron() -> torch.nn.Module:
    nn = torch.nn
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def convolutional() -> torch.nn.Module:
    nn = torch.nn
    layers: list[torch.nn.Module] = []
    for inner, outer in ((1, 16), (16, 32)):
        layers += [nn.Conv2d(inner, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.25), nn.Linear(32 * 49, 10))


def mobile() -> torch.nn.Module:
    """Depthwise and pointwise convolutions, as in MobileNet; the last layer has the name 26."""
    nn = torch.nn
    layers: list[torch.nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU6()]
    for inner, outer, stride in ((32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1)):
        layers += [
            nn.Conv2d(inner, inner, 3, stride, 1, groups=inner),
            nn.ReLU6(),
            nn.Conv2d(inner, outer, 1),
            nn.ReLU6(),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


WORKS = [
    Work("perceptron, 784-128-10", perceptron, (32, 1, 28, 28)),
    Work("convolutions, BatchNorm, Dropout", convolutional, (32, 1, 28, 28)),
    Work("transformer, 2 layers of 64", Attention, (16, 16, 64)),
    Work("depthwise convolutions, head only", mobile, (8, 3, 64, 64), "24.*"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    sizes, times = [], []
    for work in WORKS:
        with tempfile.TemporaryDirectory() as folder:
            made, batch = _exported(work, Path(folder))
            sizes.append(_size_row(work, made))
            times.append(_time_row(work, made, batch, steps))
    text = PAGE.read_text("utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}{_tables(sizes, times)}{END}{rest.split(END)[1]}", "utf-8")


def _exported(work: Work, folder: Path) -> tuple[Exported, dict[str, np.ndarray]]:
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    x = random.normal(size=work.shape).astype(np.float32)
    onward.torch.export(work.module(), (torch.from_numpy(x),), folder / "model.onnx", dynamic_batch=True)
    made = export(
        folder / "model.onnx", folder / "folder", "cross_entropy", "adamw", trainable=work.trainable, learning_rate=1e-3
    )
    names = [made.manifest[key][0]["name"] for key in ("inputs", "targets")]
    return made, {names[0]: x, names[1]: random.integers(0, 10, len(x))}


def _size_row(work: Work, made: Exported) -> str:
    files = made.manifest["files"]
    kilobytes = [
        0 if files[name] is None else files[name]["bytes"] / 1000
        for name in ("step", "eval", "inference", "checkpoint", "frozen")
    ]
    kilobytes.append((made.directory / "manifest.json").stat().st_size / 1000)
    model = (made.directory.parent / "model.onnx").stat().st_size / 1000
    return (
        f"| {work.title} | {model:,.0f} | {' | '.join(f'{size:,.0f}' for size in kilobytes)} | {sum(kilobytes):,.0f} |"
    )


def _time_row(work: Work, made: Exported, batch: dict[str, np.ndarray], steps: int) -> str:
    save_file(batch, made.directory.parent / "batch.safetensors")
    native, wasm = _python_times(made, batch, steps), _wasm_times(made, steps)
    here, there = min(native), min(wasm)  # of many steps: other programs may be running
    return f"| {work.title} | {here:.2f} | {there:.2f} | {there / here:.1f} |"


def _python_times(made: Exported, batch: dict[str, np.ndarray], steps: int) -> list[float]:
    training, taken = Training(made.directory), []
    for _ in range(steps):
        start = time.perf_counter()
        training.step(batch)
        taken.append((time.perf_counter() - start) * 1000)
    return taken[steps // 5 :]


def _wasm_times(made: Exported, steps: int) -> list[float]:
    command = ["node", str(ROOT / "benchmarks" / "edge.mjs"), str(made.directory), "../batch.safetensors", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=made.directory)
    if done.returncode:
        raise SystemExit(f"{done.stderr}\nonward-web has to be built: make test-web")
    return json.loads(done.stdout.splitlines()[-1])[steps // 5 :]


def _tables(sizes: list[str], times: list[str]) -> str:
    package = json.loads((ROOT / "web" / "node_modules" / "onnxruntime-web" / "package.json").read_text("utf-8"))
    return "\n".join(
        [
            "Sizes in kB (1000 bytes), with AdamW:",
            "",
            "| model | .onnx | step | eval | inference | checkpoint | frozen | manifest | folder |",
            "|---|---|---|---|---|---|---|---|---|",
            *sizes,
            "",
            "Milliseconds of a step, the shortest of many: in Python by onnxruntime "
            f"{onnxruntime.__version__} on {os.cpu_count()} processors ({platform.machine()}), and in Node by "
            f"onnxruntime-web {package['version']} (wasm, one thread):",
            "",
            "| model | Python | wasm | ratio |",
            "|---|---|---|---|",
            *times,
            "",
        ]
    )


if __name__ == "__main__":
    main()

"""The examples train: what `make demo` shows is true."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

ROOT = Path(__file__).parents[1]


def train(example: str, folder: Path) -> tuple[float, float, str]:
    """Run an example: accuracy before and after, and what it shows meanwhile."""
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / example), "--output", str(folder / "out")]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert (folder / "out" / "loss.png").read_bytes().startswith(b"\x89PNG")
    before, after = (float(number) for number in re.findall(r"([\d.]+)%\n", run.stdout))
    return before, after, run.stderr


def check_trained_model(path: Path) -> None:
    """Only the weights differ from what the exporter wrote."""
    original, trained = onnx.load(ROOT / "examples" / "models" / "digits_cnn.onnx"), onnx.load(path)
    onnx.checker.check_model(trained, full_check=True)
    assert list(trained.graph.node) == list(original.graph.node)
    assert list(trained.graph.input) == list(original.graph.input)
    assert list(trained.graph.output) == list(original.graph.output)
    ours, theirs = (
        {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        for model in (trained, original)
    )
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        same = np.array_equal(array, theirs[name])
        assert same == (array.dtype == np.int64), f"{name} should train if it is a weight"


def test_demo_trains_a_foreign_model(tmp_path: Path) -> None:
    before, after, shown = train("demo.py", tmp_path)
    assert before < 30
    assert after > 95
    assert "epoch 15/15: 100%" in shown
    assert "val_accuracy=0.9" in shown
    check_trained_model(tmp_path / "out" / "digits_cnn_trained.onnx")


def test_gradient_by_hand_trains_too(tmp_path: Path) -> None:
    before, after, shown = train("gradient_by_hand.py", tmp_path)
    assert before < 30
    assert after > 95
    assert "training: 100%" in shown
    assert "loss=" in shown
    check_trained_model(tmp_path / "out" / "digits_cnn_trained.onnx")


def test_demo_model_is_what_its_exporter_wrote() -> None:
    model = onnx.load(ROOT / "examples" / "models" / "digits_cnn.onnx")
    assert model.producer_name == "pytorch"
    assert {node.op_type for node in model.graph.node} == {"Conv", "Relu", "MaxPool", "Reshape", "Gemm"}

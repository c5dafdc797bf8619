"""What `make demo` shows is true, and so is the loop that is written by hand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "examples" / "models" / "digits_cnn.onnx"


def check_trained_model(path: Path) -> None:
    """Only the weights differ from what the exporter wrote."""
    original, trained = onnx.load(MODEL), onnx.load(path)
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
    run = subprocess.run([sys.executable, "-m", "onward", "demo"], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    before, after = re.findall(r"^(?:before|after) training +[\d.]+ +([\d.]+)$", run.stdout, re.MULTILINE)
    assert float(before) < 0.3
    assert float(after) > 0.95
    folder = tmp_path / "onward-demo"
    written = {path.name for path in (folder / "out").iterdir()}
    assert {"trained.onnx", "recipe.toml", "history.csv", "report.html", "checkpoints"} <= written
    check_trained_model(folder / "out" / "trained.onnx")
    # It ends with three commands, which work.
    commands = [line.split() for line in run.stdout.partition("try next:")[2].strip().splitlines()]
    assert len(commands) == 3
    for command in commands[:2]:
        assert command[0] == "onward"
        done = subprocess.run([sys.executable, "-m", *command], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    predicted = (tmp_path / "predictions.csv").read_text().splitlines()
    assert len(predicted) == 1798
    assert predicted[0].startswith("row,prediction,confidence,logits[0]")


def test_gradient_by_hand_trains_too(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / "gradient_by_hand.py"), "--output", "out"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "out" / "loss.png").read_bytes().startswith(b"\x89PNG")
    before, after = (float(number) for number in re.findall(r"([\d.]+)%\n", run.stdout))
    assert before < 30
    assert after > 95
    assert "training: 100%" in run.stderr
    assert "loss=" in run.stderr
    check_trained_model(tmp_path / "out" / "digits_cnn_trained.onnx")


def test_demo_model_is_what_its_exporter_wrote() -> None:
    model = onnx.load(MODEL)
    assert model.producer_name == "pytorch"
    assert {node.op_type for node in model.graph.node} == {"Conv", "Relu", "MaxPool", "Reshape", "Gemm"}
    assert (ROOT / "src/onward/cli/demonstration/digits_cnn.onnx").read_bytes() == MODEL.read_bytes()

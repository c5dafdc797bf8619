"""The demo trains: what `make demo` shows is true."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

ROOT = Path(__file__).parents[1]


def test_demo_trains_a_foreign_model(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / "demo.py"), "--output", str(tmp_path / "out")]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    before, after = (float(number) for number in re.findall(r"([\d.]+)%\n", run.stdout))
    assert before < 30
    assert after > 95
    assert "training: 100%" in run.stderr
    assert "loss=" in run.stderr
    assert (tmp_path / "out" / "loss.png").read_bytes().startswith(b"\x89PNG")

    original = onnx.load(ROOT / "examples" / "models" / "digits_cnn.onnx")
    trained = onnx.load(tmp_path / "out" / "digits_cnn_trained.onnx")
    onnx.checker.check_model(trained, full_check=True)
    assert trained.graph.node == original.graph.node
    for ours, theirs in zip(trained.graph.initializer, original.graph.initializer, strict=True):
        assert ours.name == theirs.name
        same = np.array_equal(numpy_helper.to_array(ours), numpy_helper.to_array(theirs))
        assert same == (ours.data_type == onnx.TensorProto.INT64), f"{ours.name} should train if it is a weight"


def test_demo_model_is_what_its_exporter_wrote() -> None:
    model = onnx.load(ROOT / "examples" / "models" / "digits_cnn.onnx")
    assert model.producer_name == "pytorch"
    assert {node.op_type for node in model.graph.node} == {"Conv", "Relu", "MaxPool", "Reshape", "Gemm"}

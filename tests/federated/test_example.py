"""The example of clients with digits trains, in this process and on ray."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "federated"
# Flower reports its use to its makers unless told otherwise; ray does so too.
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}


def run(output: Path, *arguments: str, warnings: str = "error") -> list[list[str]]:
    """The lines of the rounds."""
    command = [sys.executable, "-W", warnings, str(EXAMPLE / "simulate.py"), "--output", str(output), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **QUIET}, cwd=output.parent)
    assert done.returncode == 0, done.stderr
    return [line.split() for line in re.findall(r"^ +\d+  .*$", done.stdout, re.MULTILINE)]


def test_the_example_learns(tmp_path: Path) -> None:
    lines = run(tmp_path / "trained.onnx", "--clients", "3", "--rounds", "2")
    assert [line[0] for line in lines] == ["0", "1", "2"]
    losses = [float(line[-2]) for line in lines]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.7 * losses[0]
    (logits,) = onnxruntime.InferenceSession(tmp_path / "trained.onnx").run(
        None, {"image": np.zeros((2, 1, 8, 8), np.float32)}
    )
    assert logits.shape == (2, 10)


@pytest.mark.slow  # ray takes half a minute to start
def test_ray_gives_the_same_numbers(tmp_path: Path) -> None:
    arguments = ("--clients", "3", "--rounds", "2")
    here = run(tmp_path / "here.onnx", *arguments)
    there = run(tmp_path / "there.onnx", *arguments, "--ray", warnings="default")  # ray warns of its own future
    assert here == there
    assert (tmp_path / "here.onnx").read_bytes() == (tmp_path / "there.onnx").read_bytes()

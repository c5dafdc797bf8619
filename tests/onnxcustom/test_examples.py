"""The examples run, at a small size and with their pictures: all of them in one process, which is not this one."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

FOLDER = Path(__file__).parents[2] / "examples" / "onnxcustom"
# Example -> rows, passes.
SIZES = {
    "linear_regression": (200, 20),
    "forward_backward": (250, 20),
    "neural_network": (60, 3),
    "classification": (150, 10),
    "nesterov": (60, 6),
    "penalties": (100, 5),
    "by_hand": (200, 15),
    "devices": (60, 2),
    "same_conditions": (80, 10),
}
PROGRAM = """
import importlib, pathlib, pickle, sys
sys.path.insert(0, sys.argv[1])
folder, sizes, results = pathlib.Path(sys.argv[2]), pickle.loads(bytes.fromhex(sys.argv[3])), {}
for name, (rows, passes) in sizes.items():
    results[name] = importlib.import_module(name).main(rows=rows, passes=passes, plot=folder / f"{name}.png")
(folder / "results.pickle").write_bytes(pickle.dumps(results))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    arguments = [str(FOLDER), str(folder), pickle.dumps(SIZES).hex()]
    done = subprocess.run([sys.executable, "-W", "error", "-c", PROGRAM, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, Any]:
    return pickle.loads((folder / "results.pickle").read_bytes())


def test_all_examples_are_here() -> None:
    assert set(SIZES) == {path.stem for path in FOLDER.glob("*.py")} - {"curves"}


@pytest.mark.parametrize("name", SIZES)
def test_pictures(folder: Path, name: str) -> None:
    content = (folder / f"{name}.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 10_000


def test_linear_regressions(results: dict[str, Any]) -> None:
    for name in ("linear_regression", "by_hand"):
        found, expected = results[name]["state"], results[name]["expected"]
        assert_allclose(found["coef"].ravel(), expected.coef_, rtol=0.1)
        assert results[name]["losses"][-1] < results[name]["losses"][0] / 50
    assert results["linear_regression"]["files"] == ["gradient.onnx", "gradient.onnx.training.onnx"]
    coef, _ = results["forward_backward"]["weights"]
    assert_allclose(coef.ravel(), results["forward_backward"]["expected"].coef_, rtol=0.1)


def test_networks(results: dict[str, Any]) -> None:
    inside, outside = results["neural_network"]["inside"], results["neural_network"]["outside"]
    assert inside[-1] < inside[0]
    assert outside[-1] < outside[0]
    assert results["neural_network"]["weights"][0] == "I0_coefficient"
    assert results["devices"]["cpu"][-1] < results["devices"]["cpu"][0]


def test_a_classification(results: dict[str, Any]) -> None:
    assert results["classification"]["accuracy"] > 0.85


def test_momentum(results: dict[str, Any]) -> None:
    ends = {name: losses[-1] for name, losses in results["nesterov"].items()}
    assert max(ends["momentum"], ends["Nesterov"]) < ends["SGD"]


def test_penalties(results: dict[str, Any]) -> None:
    sizes = results["penalties"]["sizes"]
    for where in ("outside", "in the graph"):
        assert sizes[where, 0.0] > sizes[where, 1e-3] > sizes[where, 1e-2]


def test_losses_are_those_of_scikit_learn(results: dict[str, Any]) -> None:
    assert len(results["same_conditions"]) == 5
    for name, (theirs, ours) in results["same_conditions"].items():
        assert len(theirs) == len(ours) == 10
        assert_allclose(ours, theirs, rtol=1e-5, err_msg=name)
        assert np.diff(ours).max() < 0

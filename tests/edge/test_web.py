"""onward-web trains as Python does, in Node and in wasm: losses, masks of Dropout, checkpoints there and back, exports.

Needs node, and `npm ci` in web/ (`make test-web` does it).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from safetensors.numpy import load_file, save_file

import onward
from onward.edge import Training, export
from onward.optim import schedules
from tests.edge import web_numbers
from tests.edge.web_models import WORKS, needs_web, normal, run_node

NEWEST = ["onnxruntime-node", "onnxruntime-web"]
OLDEST = [pytest.param(f"{package}-oldest", marks=pytest.mark.slow) for package in NEWEST]
PACKAGES = [*NEWEST, *OLDEST]
STEPS = 20

pytestmark = [*needs_web, pytest.mark.usefixtures("built")]


def in_node(package: str, folder: Path, out: Path, steps: int = STEPS, checkpoint: Path | None = None) -> dict:
    command = ["test/train.mjs", package, folder, folder.parent / "batch", out, steps]
    return json.loads(run_node(*command, *([] if checkpoint is None else [checkpoint]), options=("--expose-gc",)))


def test_units() -> None:
    """The tests of TypeScript alone, with numbers that are Python's of today."""
    assert json.loads(web_numbers.FILE.read_text()) == json.loads(json.dumps(web_numbers.numbers()))
    run_node("node_modules/vitest/vitest.mjs", "run")


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
    # What is fed as state counts, each tensor of it, and in all graphs.
    assert result["ignored"] == []
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


@pytest.mark.parametrize("package", PACKAGES)
def test_fits_as_the_trainer_does(package: str, folder: Callable[[str], Path], tmp_path: Path) -> None:
    """The same seed, the same order of rows in every epoch, the same rates: the same losses."""
    schedule = schedules.Cosine(0.02, 30, warmup_step_count=3)
    model = folder("perceptron").parent / "model.onnx"
    x, y = normal(50, 10), np.arange(50) % 3
    trainer = onward.Trainer(model, "cross_entropy", "adamw", schedule=schedule, seed=7)
    expected = trainer.fit(x, y, epochs=3, batch_size=16)
    exported = export(model, tmp_path / "folder", "cross_entropy", "adamw", schedule=schedule)
    names = [entry["name"] for key in ("inputs", "targets") for entry in exported.manifest[key]]
    save_file(dict(zip(names, (x, y), strict=True)), tmp_path / "rows")
    settings = json.dumps({"epochs": 3, "batchSize": 16, "seed": 7})
    result = json.loads(run_node("test/fit.mjs", package, tmp_path / "folder", tmp_path / "rows", settings))
    np.testing.assert_allclose(result["rates"], expected.rates, rtol=1e-15)
    np.testing.assert_allclose(result["losses"], expected.losses, rtol=1e-5)
    assert result["epochs"] == [0] * 4 + [1] * 4 + [2] * 4
    assert result["stopped"] == {"losses": 2, "stopped": True}


REFUSED = {
    "classes": "the labels labels must be from 0 to 2, but there is 3",
    "shapes": "the input input must have the shape [batch, 10], not [2, 4]",
    "rates": "the learning rate must be a finite number that is not negative, not NaN",
    "losses": "the loss of step 1 is NaN, and nothing was changed by it",
    "changed files": "step.onnx is not the file that manifest.json describes",
    "other checkpoints": "this is no checkpoint of an exported folder",
    "truncated checkpoints": "the tensor file is truncated",
    "missing files": "there is no manifest.json among the files: ",
    "generators used twice": "epoch 1 had no data to train with; a generator can be used once only",
    "batch sizes": "batchSize is a whole number from 1 on, not 0",
    "disposed": "this training was disposed of",
}


@pytest.mark.parametrize("package", PACKAGES)
def test_refuses(package: str, folder: Callable[[str], Path]) -> None:
    said = json.loads(run_node("test/refuse.mjs", package, folder("perceptron")))
    assert said.keys() == REFUSED.keys()
    for case, message in REFUSED.items():
        assert message in said[case], case

"""Checkpoints of onnxruntime-training: recorded ones are read and continued, and what is written is read again.

That the original reads what is written here was checked with tests/data/record/ort_checkpoints.py --read.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from onward import artifacts
from onward.api import CheckpointState, Module, Optimizer
from onward.errors import OnwardError
from onward.runtime import checkpoint, odtc
from tests.api.toys import Run, with_weights

DATA = Path(__file__).parents[1] / "data"
RELEASES = ["1.17.3", "1.19.2"]  # versions 1 and 2 of the format
TRAINABLE, FROZEN = ["fc1.weight", "fc2.weight", "fc2.bias"], ["fc1.bias"]
MODEL = """<ir_version: 8, opset_import: ["" : 14]>
mlp (float[N, 4] input) => (float[N, 2] output) {
    hidden = Gemm<transB = 1>(input, fc1.weight, fc1.bias)
    active = Tanh(hidden)
    output = Gemm<transB = 1>(active, fc2.weight, fc2.bias)
}"""
SHAPES = {"fc1.weight": (3, 4), "fc1.bias": (3,), "fc2.weight": (2, 3), "fc2.bias": (2,)}


def data(step: int) -> tuple[np.ndarray, np.ndarray]:
    """The batches of the recording."""
    inputs = np.random.default_rng(step).normal(size=(5, 4)).astype(np.float32)
    return inputs, np.random.default_rng(100 + step).integers(0, 2, 5)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for optimizer in (artifacts.OptimType.AdamW, artifacts.OptimType.SGD):
        folder = made[optimizer.name.lower()] = tmp_path_factory.mktemp(optimizer.name)
        artifacts.generate_artifacts(
            with_weights(MODEL, SHAPES),
            requires_grad=TRAINABLE,
            frozen_params=FROZEN,
            loss=artifacts.LossType.CrossEntropyLoss,
            optimizer=optimizer,
            artifact_directory=folder,
        )
    return made


def recorded(name: str) -> dict:
    return json.loads((DATA / f"{name}.json").read_text("utf-8"))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_training_continues_as_in_the_original(release: str, optimizer: str, folders: dict[str, Path]) -> None:
    name = f"ort-{release}-mlp-{optimizer}"
    expected = recorded(name)
    run = Run.open(folders[optimizer], DATA / name)
    assert dict(run.state.properties) == {"epoch": 7, "score": 0.25, "name": "größe", "negative": -3}
    for parameter, values in run.values().items():
        np.testing.assert_array_equal(values, np.array(expected["saved"][parameter], np.float32))
    assert run.optimizer.get_learning_rate() == pytest.approx(0.001)
    np.testing.assert_allclose(run.train(3, 3, data), expected["losses"][3:], rtol=1e-6)
    for parameter, values in run.values().items():
        np.testing.assert_allclose(values, expected["resumed"][parameter], atol=1e-6)
    assert run.optimizer._optimizer.state.step == 6


@pytest.mark.parametrize("release", RELEASES)
def test_generated_checkpoints_keep_the_order(release: str) -> None:
    state = checkpoint.load(DATA / f"ort-{release}-mlp-generated")
    assert (state.trainable_names, state.frozen_names) == (TRAINABLE, FROZEN)
    assert state.optimizer is None


def test_a_nominal_checkpoint_of_the_original_is_completed(folders: dict[str, Path]) -> None:
    whole = Run.open(folders["adamw"], DATA / "ort-1.19.2-mlp-generated")
    run = Run.open(folders["adamw"], DATA / "ort-1.19.2-mlp-nominal")
    assert run.state._state.nominal
    assert run.module.get_parameters_size(False) == 23
    run.module.copy_buffer_to_parameters(whole.module.get_contiguous_parameters(), trainable_only=False)
    assert run.train(3, 0, data) == whole.train(3, 0, data)


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_what_is_written_is_read_again(
    external: bool, optimizer: str, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if external:
        monkeypatch.setattr(odtc, "_EXTERNAL_FROM", 0)
        monkeypatch.setattr(odtc, "_SMALLEST_EXTERNAL", 16)
    run = Run.open(folders[optimizer])
    run.train(3, 0, data)
    for key, value in (("epoch", 7), ("score", 0.25), ("name", "größe")):
        run.state.properties[key] = value
    path = tmp_path / "written"
    CheckpointState.save_checkpoint(run.state, path, True, format="onnxruntime")
    assert odtc.external_path(path).exists() == external
    again = Run.open(folders[optimizer], path)
    assert dict(again.state.properties) == dict(run.state.properties)
    # The quantities of the textbook are stored, so a slot is rounded once.
    np.testing.assert_allclose(again.train(3, 3, data), run.train(3, 3, data), rtol=1e-6)
    for name, values in run.values().items():
        np.testing.assert_allclose(again.values()[name], values, atol=1e-6)
    if external:
        odtc.external_path(path).unlink()
        with pytest.raises(OnwardError, match=r"are in 'written\.data', which is not beside it"):
            checkpoint.load(path)


def test_nominal_is_written(tmp_path: Path) -> None:
    state = checkpoint.load(DATA / "ort-1.19.2-mlp-nominal")
    odtc.save(state, tmp_path / "nominal")
    again = checkpoint.load(tmp_path / "nominal")
    assert again.nominal
    assert (sorted(again.trainable_names), again.frozen_names) == (sorted(TRAINABLE), FROZEN)


def test_state_of_another_optimizer(folders: dict[str, Path]) -> None:
    """SGD of the original keeps a momentum that it never uses; AdamW needs two."""
    state = CheckpointState.load_checkpoint(DATA / "ort-1.19.2-mlp-sgd")
    module = Module(folders["adamw"] / "training_model.onnx", state)
    with pytest.raises(OnwardError, match="holds the optimizer state mu, but optimizer 'adamw_hf' needs mu, nu"):
        Optimizer(folders["adamw"] / "optimizer_model.onnx", module)


def test_truncated(tmp_path: Path) -> None:
    content = (DATA / "ort-1.19.2-mlp-adamw").read_bytes()
    for length in range(8, len(content) - 8, 13):
        (tmp_path / "cut").write_bytes(content[:length])
        try:
            state = checkpoint.load(tmp_path / "cut")
        except OnwardError as error:
            assert "Checkpoint" in str(error) or "not supported" in str(error)  # noqa: PT017
        else:
            # Builders write tables before what they refer to, so a cut at the end may only lose padding.
            assert length > len(content) - 16, (length, state)


def test_unknown_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(odtc, "VERSIONS", (1, 2, 3))
    odtc.save(checkpoint.load(DATA / "ort-1.19.2-mlp-generated"), tmp_path / "newer")
    monkeypatch.undo()
    with pytest.raises(OnwardError, match="Checkpoint version 3 is not supported"):
        checkpoint.load(tmp_path / "newer")


def test_optimizer_state_that_lacks_a_parameter(folders: dict[str, Path]) -> None:
    state = CheckpointState.load_checkpoint(DATA / "ort-1.19.2-mlp-adamw")
    found = state._state.optimizer
    assert found is not None
    for slot in found.slots.values():
        del slot.layout["fc2.bias"]
    module = Module(folders["adamw"] / "training_model.onnx", state)
    with pytest.raises(OnwardError, match=r"Parameter fc2\.bias not found in the source optimizer checkpoint states"):
        Optimizer(folders["adamw"] / "optimizer_model.onnx", module)

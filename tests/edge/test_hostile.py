"""Folders of models that are unlike the usual ones, and folders that cannot be written."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onward
from onward.edge import Training, export
from onward.graph import finish
from tests.edge.test_export import BATCH, network

RANDOM = np.random.default_rng(0)


def model_of(text: str, opset: int = 17, **weights: np.ndarray) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return model


def normal(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(dtype)


def falls(folder: Path, batch: dict, steps: int = 10) -> Training:
    training = Training(folder)
    losses = [training.step(batch).loss for _ in range(steps)]
    assert losses[-1] < losses[0]
    return training


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser writes everywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path):
    tmp_path.chmod(0o500)
    with pytest.raises(onward.OnwardError, match="written"):
        export(network(), tmp_path / "folder", "mse")


def test_a_file_in_the_place_of_the_folder(tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    for directory in (tmp_path / "file", tmp_path / "file" / "folder"):
        with pytest.raises(onward.OnwardError, match="written"):
            export(network(), directory, "mse")
    assert (tmp_path / "file").read_text() == "mine"


def test_an_older_folder_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path):
    export(network(), tmp_path, "mse", frozen="w0")
    (tmp_path / "notes.txt").write_text("mine")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(onward.OnwardError, match="nothing"):
        export(network(), tmp_path, "mse", trainable="nothing*")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    export(network(), tmp_path, "mse")
    assert (tmp_path / "notes.txt").read_text() == "mine"
    falls(tmp_path, BATCH)


def test_a_model_without_parameters(tmp_path: Path):
    with pytest.raises(onward.OnwardError, match="train"):
        export(model_of("g (float[N, 3] x) => (float[N, 3] y) { y = Tanh(x) }"), tmp_path / "none", "mse")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("target", ["wasm", "webgpu"])
def test_sizes_that_only_the_data_says(tmp_path: Path, target: str):
    """Batch, length and number of classes are open; so are the shapes of the targets."""
    text = "g (float[N, T, 4] x) => (float y) { h = MatMul(x, w) y = Transpose<perm = [0, 2, 1]>(h) }"
    made = export(model_of(text, w=normal(4, 3)), tmp_path, "cross_entropy", "adamw", target=target)
    training = falls(made.directory, {"x": normal(2, 5, 4), "labels": RANDOM.integers(0, 3, (2, 5))})
    assert np.isfinite(training.step({"x": normal(3, 7, 4), "labels": RANDOM.integers(0, 3, (3, 7))}).loss)
    for labels in (np.full((2, 5), 3), np.zeros((2, 4), np.int64)):
        with pytest.raises(onward.OnwardError, match="label"):
            training.step({"x": normal(2, 5, 4), "labels": labels})


@pytest.mark.parametrize("target", ["wasm", "webgpu"])
def test_several_inputs_and_outputs(tmp_path: Path, target: str):
    text = """g (float[N, 4] a, float[N, 2] b, int64[N] token) => (float[N, 3] y, float[N, 5] z) {
        e = Gather(table, token) s = Concat<axis = 1>(a, b, e) y = MatMul(s, w) z = MatMul(s, v) }"""
    model = model_of(text, table=normal(7, 2), w=normal(8, 3), v=normal(8, 5))
    with pytest.raises(onward.OnwardError, match="loss_inputs"):
        export(model, tmp_path / "none", "mse")
    made = export(model, tmp_path / "folder", "mse", loss_inputs=["z"], target=target)
    batch = {"a": normal(6, 4), "b": normal(6, 2), "token": np.arange(6)}
    training = falls(made.directory, {**batch, "target": normal(6, 5)})
    assert set(training.predict(batch)) == {"y", "z"}
    assert "w" not in made.trainable  # nothing of the loss depends on it


@pytest.mark.parametrize("target", ["wasm", "webgpu"])
def test_half_precision(tmp_path: Path, target: str):
    half = np.float16
    text = "g (float16[N, 4] x) => (float16[N, 3] y) { y = MatMul(x, w) }"
    made = export(model_of(text, w=normal(4, 3, dtype=half)), tmp_path, "mse", "sgd", target=target)
    batch = {"x": normal(5, 4, dtype=half), "target": normal(5, 3, dtype=half)}
    training = falls(made.directory, batch)
    training.save(tmp_path / "middle.safetensors")
    assert Training(tmp_path, tmp_path / "middle.safetensors").step(batch).loss == training.step(batch).loss


def test_one_weight_in_two_places(tmp_path: Path):
    """Tied weights are one parameter; equal weights that are frozen are stored once."""
    text = """g (float[N, 40] x) => (float[N, 40] y) {
        t = Transpose<perm = [1, 0]>(w) h = MatMul(x, w) a = MatMul(h, f1) b = MatMul(a, f2) y = MatMul(b, t) }"""
    frozen = normal(40, 40) * np.float32(0.1)
    model = model_of(text, w=normal(40, 40) * np.float32(0.1), f1=frozen, f2=frozen.copy())
    made = export(model, tmp_path, "mse", "sgd", trainable="w", learning_rate=0.05)
    assert made.trainable == ["w"]
    assert (tmp_path / "frozen.data").stat().st_size == 40 * 40 * 4
    training = falls(tmp_path, {"x": normal(6, 40), "target": normal(6, 40)})
    training.export(tmp_path / "trained.onnx")
    onnx.checker.check_model(tmp_path / "trained.onnx", full_check=True)


def test_an_opset_that_no_runtime_has(tmp_path: Path):
    model = network()
    model.opset_import[0].version = 99
    with pytest.raises(onward.OnwardError, match="opset"):
        export(model, tmp_path / "none", "mse")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("target", ["wasm", "webgpu"])
def test_names_of_any_kind(tmp_path: Path, target: str):
    model = network()
    names = {"w1": "层/一:重み", "w2": "../w 2", "w0": "a\\b\"c'", "x": "entrée/0", "mean": "/mean"}
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    for value in (*model.graph.initializer, *model.graph.input):
        value.name = names.get(value.name, value.name)
    made = export(model, tmp_path, "mse", frozen=[names["w0"]], target=target)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "checkpoint.safetensors", "eval.onnx", "frozen.data", "inference.onnx", "manifest.json", "step.onnx",
    ]  # fmt: skip
    batch = {names["x"]: BATCH["x"], "target": BATCH["target"]}
    training = falls(made.directory, batch)
    plain = export(network(), tmp_path / "plain", "mse", frozen="w0", target=target)
    assert [Training(plain.directory).step(BATCH).loss] == [Training(made.directory).step(batch).loss]
    training.export(tmp_path / "trained.onnx")
    assert {x.name for x in onnx.load(tmp_path / "trained.onnx").graph.initializer} >= {names["w1"], names["w0"]}


def test_weights_in_files_of_their_own(tmp_path: Path):
    """A model whose weights are external data is never loaded as a whole, and the folder does not refer to it."""
    onnx.save_model(
        network(), tmp_path / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    made = export(tmp_path / "model.onnx", tmp_path / "folder", "mse", frozen="w0")
    inner = export(network(), tmp_path / "inner", "mse", frozen="w0")
    (tmp_path / "weights.bin").unlink()
    for file in ("frozen.data", "checkpoint.safetensors"):
        assert (made.directory / file).read_bytes() == (inner.directory / file).read_bytes()
    falls(made.directory, BATCH)


@pytest.mark.parametrize("target", ["wasm", "webgpu"])
def test_changing_what_is_fed_as_state_changes_the_loss(tmp_path: Path, target: str):
    """Parameters change the loss of this step, slots that of the next, running statistics that of evaluation."""
    made = export(network(), tmp_path, "mse", "adamw", target=target)
    for entry in made.manifest["state"]:
        plain, changed = Training(tmp_path), Training(tmp_path)
        for training in (plain, changed):
            training.step(BATCH)
        changed.state[entry["name"]][...] += 0.5  # type: ignore[index]
        if entry["role"] == "buffer":
            losses = [training.evaluate(BATCH).loss for training in (plain, changed)]
        else:
            first = [training.step(BATCH).loss for training in (plain, changed)]
            second = [training.step(BATCH).loss for training in (plain, changed)]
            losses = first if entry["role"] == "parameter" else second
        assert losses[0] != losses[1], entry["name"]


@pytest.mark.parametrize("target", ["wasm", "webgpu"])
def test_weights_that_no_message_of_protobuf_could_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str):
    """Above 2 GB, graphs refer to the files of the model while they are made; here, above 100 bytes."""
    path = tmp_path / "model.onnx"
    onnx.save_model(network(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    whole = export(path, tmp_path / "whole", "mse", frozen="w0", target=target)
    monkeypatch.setattr(finish, "LARGEST_PROTO", 100)
    parts = export(path, tmp_path / "parts", "mse", frozen="w0", target=target)
    assert parts.manifest["files"]["frozen"] == whole.manifest["files"]["frozen"]
    assert (tmp_path / "parts" / "checkpoint.safetensors").read_bytes() == (
        tmp_path / "whole" / "checkpoint.safetensors"
    ).read_bytes()
    path.with_name("weights.bin").unlink()
    assert Training(parts.directory).step(BATCH).loss == Training(whole.directory).step(BATCH).loss
    falls(parts.directory, BATCH)

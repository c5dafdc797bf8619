"""External data comes from the folder of its model, whatever the model says."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import onward
from onward import artifacts, location
from onward.api import CheckpointState, Module
from onward.errors import InvalidModelError
from onward.runtime import wire
from tests.api import toys

SECRET = np.arange(20, dtype=np.float32).reshape(5, 4) + 0.5
LENGTH = SECRET.nbytes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for models, beside a file that none of them should be able to read."""
    (tmp_path / "secret").write_bytes(SECRET.tobytes())
    inside = tmp_path / "models"
    (inside / "data").mkdir(parents=True)
    (inside / "own").write_bytes(SECRET.tobytes())
    (inside / "data" / "own").write_bytes(SECRET.tobytes())
    (inside / "link").symlink_to(tmp_path / "secret")
    (inside / "parent").symlink_to(tmp_path)
    (inside / "inner").symlink_to(inside / "own")
    os.link(tmp_path / "secret", inside / "hard")
    return inside


OUTSIDE = ["../secret", "data/../../secret", "{absolute}", "link", "parent/secret", "./link", "hard"]
INSIDE = ["own", "data/own", "./own", "data/../own", "inner"]


def pointing(model: onnx.ModelProto, place: str, folder: Path, name: str = "fc1.weight") -> onnx.ModelProto:
    """A model whose initializer is said to be in a file."""
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    said = {"location": place.format(absolute=folder.parent / "secret"), "offset": "0", "length": str(LENGTH)}
    for key, value in said.items():
        tensor.external_data.add(key=key, value=value)
    return model


@pytest.mark.parametrize("place", INSIDE)
def test_what_is_inside_is_read(place: str, folder: Path) -> None:
    model = wire.parse(pointing(toys.mlp(), place, folder).SerializeToString())
    assert model.check_files(folder)
    assert model.holds("fc1.weight", SECRET, folder)


@pytest.mark.parametrize("place", OUTSIDE)
def test_what_is_outside_is_not_read(place: str, folder: Path) -> None:
    model = wire.parse(pointing(toys.mlp(), place, folder).SerializeToString())
    with pytest.raises(InvalidModelError, match=r"outside of (its|the) folder"):
        model.load_external(folder)
    with pytest.raises(InvalidModelError, match=r"outside of (its|the) folder"):
        model.holds("fc1.weight", SECRET, folder)


@pytest.mark.parametrize("place", [place for place in OUTSIDE if place != "hard"])
def test_models_are_refused_before_onnxruntime_reads_for_them(place: str, folder: Path) -> None:
    """Older releases of onnxruntime do not look where files are."""
    constant = onnx.helper.make_node(
        "Constant", [], ["c"], value=pointing(toys.mlp(), place, folder).graph.initializer[0]
    )
    model = toys.mlp()
    model.graph.node.append(constant)
    branch = onnx.helper.make_graph([constant], "branch", [], [])
    nested = toys.mlp()
    nested.graph.node.append(onnx.helper.make_node("If", ["flag"], ["c"], then_branch=branch, else_branch=branch))
    for hidden in (model, nested, pointing(toys.mlp(), place, folder)):
        with pytest.raises(InvalidModelError, match="outside of its folder"):
            wire.parse(hidden.SerializeToString()).check_files(folder)


def test_swapping_a_file_after_the_check_does_not_help(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = location.resolve_inside

    def swapped(*arguments: object) -> Path:
        found = resolve(*arguments)  # type: ignore[arg-type]
        found.unlink()
        found.symlink_to(folder.parent / "secret")
        return found

    monkeypatch.setattr(location, "resolve_inside", swapped)
    with pytest.raises(InvalidModelError, match="which holds weights, cannot be read"):
        location.read_inside(folder, "own", 0, None)
    assert not (folder / "own").exists() or (folder / "own").is_symlink()


def test_swapping_a_folder_after_the_check_does_not_help(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = location.resolve_inside
    (folder.parent / "own").write_bytes(SECRET.tobytes())

    def swapped(*arguments: object) -> Path:
        found = resolve(*arguments)  # type: ignore[arg-type]
        found.unlink()
        found.parent.rmdir()
        found.parent.symlink_to(folder.parent)
        return found

    monkeypatch.setattr(location, "resolve_inside", swapped)
    with pytest.raises((InvalidModelError, FileNotFoundError)):
        location.read_inside(folder, "data/own", 0, None)


@pytest.mark.parametrize("place", ["", "\0", "own\0", "."])
def test_what_is_no_name_of_a_file(place: str, folder: Path) -> None:
    with pytest.raises(InvalidModelError):
        location.resolve_inside(folder, place)


def test_pipes_and_folders_are_no_files(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    for place in ("pipe", "data"):
        with pytest.raises(InvalidModelError, match="not a file"):
            location.open_inside(folder, place)


@pytest.mark.parametrize(
    ("offset", "length"), [(0, LENGTH + 1), (LENGTH, 1), (2**62, None), (-1, 4), (0, 2**62), (0, -1)]
)
def test_more_than_there_is(offset: int, length: int | None, folder: Path) -> None:
    with pytest.raises(InvalidModelError, match="one of the two files is damaged"):
        location.read_inside(folder, "own", offset, length)


# Through every door --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", OUTSIDE)
def test_the_graph_layer_refuses_too(place: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "model.onnx"
    model = pointing(toys.mlp(), place, folder)
    path.write_bytes(model.SerializeToString())
    doors = {
        "gradient": lambda given: onward.gradient(given),
        "generate_artifacts": lambda given: artifacts.generate_artifacts(
            given, loss=artifacts.LossType.CrossEntropyLoss, artifact_directory=folder / "artifacts"
        ),
    }
    for door in doors.values():
        with pytest.raises(InvalidModelError, match=r"outside of (its|the) folder"):
            door(path)
    # A model without a folder is taken to be in the current one.
    monkeypatch.chdir(folder)
    for given in (model, "model.onnx"):
        for door in doors.values():
            with pytest.raises(InvalidModelError, match=r"outside of (its|the) folder"):
                door(given)
    assert not (folder / "artifacts").exists()


def test_a_file_that_is_too_short(folder: Path) -> None:
    (folder / "own").write_bytes(SECRET.tobytes()[:-1])
    (folder / "model.onnx").write_bytes(pointing(toys.mlp(), "own", folder).SerializeToString())
    with pytest.raises(InvalidModelError, match="one of the two files is damaged or of another version"):
        onward.gradient(folder / "model.onnx")


@pytest.mark.parametrize("place", OUTSIDE)
def test_nothing_from_outside_is_exported(place: str, folder: Path) -> None:
    """Eval models whose weights have been moved elsewhere by somebody who wants the file that the user exports."""
    toys.generate(folder, toys.mlp(), requires_grad=["fc2.weight"])
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    trainer = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    evaluation = onnx.load(folder / "eval_model.onnx")
    (folder / "eval_model.onnx").write_bytes(pointing(evaluation, place, folder).SerializeToString())
    with pytest.raises(InvalidModelError, match=r"outside of (its|the) folder"):
        trainer.export_model_for_inferencing(folder / "exported.onnx", ["output"])
    assert not (folder / "exported.onnx").exists()
    if place != "hard":
        with pytest.raises(InvalidModelError, match="outside of its folder"):
            Module(folder / "eval_model.onnx", state)


def test_what_is_inside_is_exported(folder: Path) -> None:
    toys.generate(folder, toys.mlp(), requires_grad=["fc2.weight"])
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    evaluation = onnx.load(folder / "eval_model.onnx")
    (folder / "eval_model.onnx").write_bytes(pointing(evaluation, "data/own", folder).SerializeToString())
    Module(folder / "training_model.onnx", state, folder / "eval_model.onnx").export_model_for_inferencing(
        folder / "exported.onnx", ["output"]
    )
    exported = {tensor.name: tensor for tensor in onnx.load(folder / "exported.onnx").graph.initializer}
    np.testing.assert_array_equal(numpy_helper.to_array(exported["fc1.weight"]), SECRET)

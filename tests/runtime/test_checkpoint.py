"""Checkpoints: what goes in comes out, whoever reads them, and damaged files are refused."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from onward.errors import OnwardError
from onward.runtime import checkpoint, tensorfile
from onward.runtime.state import OptimizerState, State, TensorType
from onward.runtime.tensors import FlatTensors

RANDOM = np.random.default_rng(0)
TRAINABLE = {"z.weight": RANDOM.normal(size=(3, 4)).astype(np.float32), "a.bias": np.ones(5, np.float32)}
FROZEN = {
    "mean": np.float64(3.0) * np.ones(()),
    "half": np.ones((2, 2), np.float16),
    "brain": np.ones(3, ml_dtypes.bfloat16),
    "numbers": np.arange(3),
    "flags": np.array([True, False]),
    "nothing": np.zeros((0, 2), np.float32),
    "größe": np.ones(1, np.uint8),
}
PROPERTIES = {"epoch": 3, "loss": 0.1, "name": "größe", "big": 2**62, "inf": float("inf")}


def full_state() -> State:
    slots = {name: FlatTensors.holding({k: v * 2 for k, v in TRAINABLE.items()}) for name in ("mu", "nu")}
    optimizer = OptimizerState(
        step=17,
        learning_rate=0.1,
        initial_learning_rate=0.3,
        slots=slots,
        scales={"mu": 0.1, "nu": 0.001},
        schedule={"schedule": "Plateau", "arguments": {"x": 1}, "state": {"best": 0.1}},
    )
    return State(TRAINABLE, FROZEN, properties=PROPERTIES, optimizer=optimizer)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint"
    checkpoint.save(full_state(), path, include_optimizer=True)
    return path


def test_everything_comes_back(saved: Path) -> None:
    state = checkpoint.load(saved)
    assert state.trainable_names == list(TRAINABLE)
    assert state.frozen_names == list(FROZEN)
    for name, array in {**TRAINABLE, **FROZEN}.items():
        found = state.tensor(name)
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found, array)
    assert state.properties == PROPERTIES
    found, expected = state.optimizer, full_state().optimizer
    assert found is not None
    assert expected is not None
    for field in ("step", "learning_rate", "initial_learning_rate", "scales", "schedule", "unnamed"):
        assert getattr(found, field) == getattr(expected, field)
    assert list(found.slots) == ["mu", "nu"]
    for slot in found.slots.values():
        for name, array in TRAINABLE.items():
            np.testing.assert_array_equal(slot[name], array * 2)


def test_saving_again_gives_the_same_bytes(saved: Path, tmp_path: Path) -> None:
    checkpoint.save(checkpoint.load(saved), tmp_path / "again", include_optimizer=True)
    assert (tmp_path / "again").read_bytes() == saved.read_bytes()


def test_without_the_optimizer(tmp_path: Path) -> None:
    checkpoint.save(full_state(), tmp_path / "checkpoint")
    assert checkpoint.load(tmp_path / "checkpoint").optimizer is None


def test_the_safetensors_package_reads_it(saved: Path) -> None:
    with safetensors.safe_open(saved, framework="np") as file:
        metadata = file.metadata()
        np.testing.assert_array_equal(file.get_tensor("z.weight"), TRAINABLE["z.weight"])
        np.testing.assert_array_equal(file.get_tensor("optimizer/mu/a.bias"), TRAINABLE["a.bias"] * 2)
        assert set(file.keys()) >= {*TRAINABLE, *FROZEN}
    assert metadata["format"] == "onward.checkpoint"
    assert metadata["version"] == "1"
    assert json.loads(metadata["trainable"]) == list(TRAINABLE)
    assert json.loads(metadata["frozen"]) == list(FROZEN)
    assert json.loads(metadata["optimizer"])["learning_rate"] == 0.1


def test_files_of_the_safetensors_package_are_read(tmp_path: Path) -> None:
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.array([1, 2], np.int8)}
    safetensors.numpy.save_file(arrays, tmp_path / "other", metadata={"key": "value"})
    with tensorfile.TensorFile(tmp_path / "other") as file:
        assert file.metadata == {"key": "value"}
        for name, array in arrays.items():
            np.testing.assert_array_equal(file.read(name), array)


def test_nominal(tmp_path: Path) -> None:
    checkpoint.save(full_state(), tmp_path / "nominal", include_optimizer=True, nominal=True)
    state = checkpoint.load(tmp_path / "nominal")
    assert state.nominal
    assert (state.trainable_names, state.frozen_names) == (list(TRAINABLE), list(FROZEN))
    assert state.type_of("z.weight") == TensorType(np.dtype(np.float32), (3, 4))
    assert state.optimizer is None
    assert state.properties == PROPERTIES
    checkpoint.save(state, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "nominal").read_bytes()


def test_nominal_without_shapes(tmp_path: Path) -> None:
    state = State.without_values({"w": TensorType(np.dtype(np.float32))}, {})
    checkpoint.save(state, tmp_path / "nominal")
    assert checkpoint.load(tmp_path / "nominal").type_of("w").shape is None


def test_texts_are_constants_of_graphs_and_not_saved(tmp_path: Path) -> None:
    state = State({}, {"words": np.array(["a", "b"], object), "w": np.ones(1, np.float32)})
    assert state.frozen_names == ["w"]


def test_a_parameter_is_not_both_trainable_and_frozen() -> None:
    with pytest.raises(OnwardError, match="either trainable or frozen"):
        State(TRAINABLE, TRAINABLE)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(OnwardError, match=r"there is no checkpoint at '.*nowhere'"):
        checkpoint.load(tmp_path / "nowhere")
    with pytest.raises(OnwardError, match="is a directory; a checkpoint is a single file"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234567",
        b"not a checkpoint at all",
        bytes(100),
        b"\x08\x00\x00\x00\x00\x00\x00\x00{nothing",
        b"\xff" * 64,
    ],
)
def test_not_a_checkpoint(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(OnwardError, match="Checkpoint verification failed"):
        checkpoint.load(tmp_path / "file")


def test_other_safetensors_files_are_not_checkpoints(tmp_path: Path) -> None:
    safetensors.numpy.save_file({"a": np.ones(2)}, tmp_path / "file")
    with pytest.raises(OnwardError, match="is a safetensors file, but not a checkpoint"):
        checkpoint.load(tmp_path / "file")


def test_truncated_anywhere(saved: Path, tmp_path: Path) -> None:
    content = saved.read_bytes()
    for length in range(0, len(content), 7):
        (tmp_path / "cut").write_bytes(content[:length])
        with pytest.raises(OnwardError, match=r"truncated|verification failed"):
            checkpoint.load(tmp_path / "cut")
    (tmp_path / "cut").write_bytes(content[:-1])
    with pytest.raises(OnwardError, match="truncated"):
        checkpoint.load(tmp_path / "cut")


def test_newer_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "VERSION", 7)
    checkpoint.save(full_state(), tmp_path / "checkpoint")
    monkeypatch.undo()
    with pytest.raises(OnwardError, match=r"Checkpoint version 7 is not supported.*newer.*Update onward"):
        checkpoint.load(tmp_path / "checkpoint")


def test_a_tensor_is_missing(tmp_path: Path) -> None:
    texts = {"trainable": '["w"]', "frozen": "[]", "properties": "{}"}
    tensorfile.write(tmp_path / "checkpoint", [], {"format": checkpoint.FORMAT, "version": "1", **texts})
    with pytest.raises(OnwardError, match="is damaged: it lacks the tensor 'w'"):
        checkpoint.load(tmp_path / "checkpoint")


def test_a_parameter_with_the_name_of_a_slot(tmp_path: Path) -> None:
    name = "optimizer/mu/w"
    arrays = {"w": np.ones(1, np.float32), name: np.ones(1, np.float32)}
    optimizer = OptimizerState(slots={"mu": FlatTensors.holding(arrays)})
    with pytest.raises(OnwardError, match="two tensors of the file would be called 'optimizer/mu/w'"):
        checkpoint.save(State(arrays, {}, optimizer=optimizer), tmp_path / "checkpoint", include_optimizer=True)


@pytest.mark.slow
def test_more_than_2_gb(tmp_path: Path) -> None:
    """Tensors are written and read one at a time, at positions beyond 31 bits."""
    size = 2**29
    entries = [
        tensorfile.Entry(f"t{index}", (size,), np.dtype(np.uint8), lambda index=index: np.full(size, index, np.uint8))
        for index in range(5)
    ]
    tensorfile.write(tmp_path / "large", entries, {})
    assert (tmp_path / "large").stat().st_size > 2**31 + 2**28
    with tensorfile.TensorFile(tmp_path / "large") as file:
        for index in (0, 4):
            array = file.read(f"t{index}")
            assert array.min() == array.max() == index

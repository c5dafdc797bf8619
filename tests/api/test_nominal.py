"""States without values: what they can do, what they say, and how they get values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onward.api import CheckpointState
from onward.errors import OnwardError
from tests.api.toys import Run, batch


@pytest.fixture
def nominal(mlp_folder: Path) -> Run:
    return Run.open(mlp_folder, "nominal_checkpoint")


def test_what_a_nominal_state_can_do(nominal: Run, tmp_path: Path) -> None:
    assert "fc1.weight" in nominal.state.parameters
    assert len(nominal.state.parameters) == 4
    assert nominal.module.get_parameters_size() == nominal.module.get_parameters_size(False) == 43
    assert nominal.module.input_names() == ["input", "labels"]
    assert repr(nominal.state) == "CheckpointState(nominal, 4 parameters, 0 properties)"
    assert repr(nominal.state.parameters) == "Parameters(4 of a nominal state)"
    assert repr(nominal.module) == "Module(training=True, device=cpu, parameters=43)"
    assert nominal.optimizer.get_learning_rate() == 0.001  # the original crashes here
    nominal.state.properties["round"] = 3
    CheckpointState.save_checkpoint(nominal.state, tmp_path / "saved", include_optimizer_state=True)
    state = CheckpointState.load_checkpoint(tmp_path / "saved")
    assert state._state.nominal
    assert state.properties["round"] == 3


def test_what_it_cannot(nominal: Run, tmp_path: Path) -> None:
    with pytest.raises(OnwardError, match="Please load the parameter states first"):
        nominal.state.parameters["fc1.weight"]
    with pytest.raises(OnwardError, match="Please load the parameter states first"):
        list(nominal.state.parameters)
    with pytest.raises(OnwardError, match="Please load all the parameter states first"):
        nominal.state.parameters["fc1.weight"] = np.ones((10, 10), np.float32)
    for action in (
        nominal.module.get_contiguous_parameters,
        lambda: nominal.module.train()(*batch()),
        lambda: nominal.module.eval()(*batch()),
        nominal.optimizer.step,
        lambda: nominal.module.export_model_for_inferencing(tmp_path / "model.onnx", ["output"]),
    ):
        with pytest.raises(OnwardError, match=r"Please load the model parameters first\."):
            action()
    buffer = np.zeros(43, np.float32)
    message = r"For nominal checkpoint state, all parameters need to be loaded.*\(trainable_only = false\)\."
    with pytest.raises(OnwardError, match=message):
        nominal.module.copy_buffer_to_parameters(buffer)
    with pytest.raises(OnwardError, match=r"Parameters buffer size incorrect\. Expected:43, Actual:42"):
        nominal.module.copy_buffer_to_parameters(buffer[1:], trainable_only=False)
    with pytest.raises(OnwardError, match="Data types must match"):
        nominal.module.copy_buffer_to_parameters(buffer.astype(np.float64), trainable_only=False)
    assert nominal.state._state.nominal


@pytest.mark.parametrize("folder", ["mlp_folder", "frozen_folder"])
def test_values_complete_it(folder: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    path = request.getfixturevalue(folder)
    complete, nominal = Run.open(path), Run.open(path, "nominal_checkpoint")
    nominal.optimizer.set_learning_rate(0.01)
    complete.optimizer.set_learning_rate(0.01)
    complete.train(2, 10)
    complete.state._state.optimizer.step = 0  # type: ignore[union-attr]
    for slot in complete.state._state.optimizer.slots.values():  # type: ignore[union-attr]
        slot.fill(0)
    buffer = complete.module.get_contiguous_parameters()
    nominal.module.copy_buffer_to_parameters(buffer, trainable_only=False)
    assert not nominal.state._state.nominal
    gradient = nominal.state.parameters["fc2.weight"].grad
    assert gradient is not None
    assert not gradient.any()
    assert nominal.train(3) == complete.train(3)
    assert nominal.module.eval()(*batch()) == complete.module.eval()(*batch())
    for name, array in complete.values().items():
        np.testing.assert_array_equal(nominal.values()[name], array)
    CheckpointState.save_checkpoint(nominal.state, tmp_path / "saved", include_optimizer_state=True)
    complete.module.train()
    assert Run.open(path, tmp_path / "saved").train(2, 3) == complete.train(2, 3)

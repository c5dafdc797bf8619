"""Two modules on one state: each with gradients of its own, both over the same parameters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onward import OnwardError
from onward.api import CheckpointState, Module, Optimizer
from onward.runtime.device import Device
from tests.api import toys

ELSEWHERE = Device("cpu", 1)  # other buffers, as on another device


def opened(folder: Path, state: CheckpointState) -> tuple[Module, Optimizer]:
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    return module, Optimizer(folder / "optimizer_model.onnx", module)


@pytest.fixture
def pair(mlp_folder: Path) -> tuple[CheckpointState, Module, Optimizer, Module, Optimizer]:
    state = CheckpointState.load_checkpoint(mlp_folder / "checkpoint")
    return state, *opened(mlp_folder, state), *opened(mlp_folder, state)


def assert_equal(state: CheckpointState, run: toys.Run) -> None:
    for name, array in run.values().items():
        np.testing.assert_array_equal(state.parameters[name].data, array, err_msg=name)


def test_an_optimizer_steps_with_the_gradients_of_its_module(pair, run: toys.Run) -> None:
    state, first, first_optimizer, second, second_optimizer = pair
    first(*toys.batch(0))
    second(*toys.batch(1))
    first_optimizer.step()
    run.module(*toys.batch(0))
    run.optimizer.step()
    assert_equal(state, run)
    run.module.lazy_reset_grad()

    # The gradients of the second are those that it had computed before the first step.
    gradients = {name: parameter.grad.copy() for name, parameter in state.parameters}
    second_optimizer.step()
    for name, parameter in run.state.parameters:
        parameter.grad[...] = gradients[name]
    run.optimizer.step()
    assert_equal(state, run)


def test_both_see_the_parameters_that_either_has_updated(pair, run: toys.Run) -> None:
    state, first, first_optimizer, second, second_optimizer = pair
    for number in range(6):
        module, optimizer = (first, first_optimizer) if number % 2 else (second, second_optimizer)
        loss = module(*toys.batch(number))
        optimizer.step()
        module.lazy_reset_grad()
        assert [float(loss)] == run.train(1, number)
    assert_equal(state, run)
    for module in (first, second, run.module):
        module.eval()
    assert first(*toys.batch()) == second(*toys.batch()) == run.module(*toys.batch())


def test_gradients_add_up_in_each_by_itself(pair, run: toys.Run) -> None:
    state, first, first_optimizer, second, _ = pair
    first(*toys.batch(0))
    second(*toys.batch(1))
    second.lazy_reset_grad()
    first(*toys.batch(2))
    first_optimizer.step()
    run.module(*toys.batch(0))
    run.module(*toys.batch(2))
    run.optimizer.step()
    assert_equal(state, run)


def test_what_a_parameter_shows_is_of_the_latest_training_step(pair) -> None:
    state, first, _, second, _ = pair
    weight = state.parameters["fc1.weight"]
    second(*toys.batch(1))
    later = weight.grad.copy()
    first(*toys.batch(0))
    assert not np.array_equal(weight.grad, later)
    second.lazy_reset_grad()
    second(*toys.batch(1))
    np.testing.assert_array_equal(weight.grad, later)


def test_a_nominal_state_is_complete_for_all(mlp_folder: Path, run: toys.Run) -> None:
    state = CheckpointState.load_checkpoint(mlp_folder / "nominal_checkpoint")
    first, first_optimizer = opened(mlp_folder, state)
    second, second_optimizer = opened(mlp_folder, state)
    first.copy_buffer_to_parameters(run.module.get_contiguous_parameters(), trainable_only=False)
    for number, (module, optimizer) in enumerate(((second, second_optimizer), (first, first_optimizer))):
        module(*toys.batch(number))
        optimizer.step()
    run.train(2)
    assert_equal(state, run)


def test_another_optimizer_of_the_same_state_is_refused(mlp_folder: Path, tmp_path: Path) -> None:
    """There is one optimizer state in a checkpoint."""
    folder = toys.generate(tmp_path, toys.mlp(), optimizer="sgd")
    state = CheckpointState.load_checkpoint(mlp_folder / "checkpoint")
    opened(mlp_folder, state)
    with pytest.raises(OnwardError, match=r"'sgd' needs nothing: it was .* or another one was made for the same state"):
        opened(folder, state)


def test_a_state_that_moves_takes_its_modules_along(pair, run: toys.Run) -> None:
    state, first, first_optimizer, second, _ = pair
    run.train(3)
    for number, device in enumerate([Device(), ELSEWHERE, Device()]):
        state._state.move(device)
        if device == ELSEWHERE:
            for use in (lambda: first(*toys.batch()), lambda: second.eval()(*toys.batch()), first_optimizer.step):
                with pytest.raises(OnwardError, match="are on cpu:1, where another module has moved them, but this"):
                    use()
            state._state.move(Device())
        first(*toys.batch(number))
        first_optimizer.step()
        first.lazy_reset_grad()
    assert_equal(state, run)
    assert second.eval()(*toys.batch()) == run.module.eval()(*toys.batch())

"""Optimizers and their learning rates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from onward.api import (
    CheckpointState,
    ConstantLRScheduler,
    CosineLRScheduler,
    ExponentialLRScheduler,
    LinearLRScheduler,
    LRScheduler,
    OneCycleLRScheduler,
    Optimizer,
    PolynomialLRScheduler,
    ReduceOnPlateauLRScheduler,
    StepLRScheduler,
)
from onward.errors import OnwardError
from onward.optim import schedules
from tests.api.toys import Run, batch


def rates(run: Run, scheduler: LRScheduler, count: int) -> list[float]:
    found = [run.optimizer.get_learning_rate()]
    for _ in range(count - 1):
        run.train(1)
        scheduler.step()
        found.append(run.optimizer.get_learning_rate())
    return found


def test_learning_rates_can_be_set(run: Run) -> None:
    assert run.optimizer.get_learning_rate() == 0.001
    run.optimizer.set_learning_rate(0.5)
    assert run.optimizer.get_learning_rate() == 0.5
    run.optimizer.set_learning_rate(np.float32(0.25))  # type: ignore[arg-type]
    assert run.optimizer.get_learning_rate() == 0.25
    assert repr(run.optimizer) == "Optimizer(adamw_hf, step=0, learning_rate=0.25)"
    assert run.optimizer._optimizer.state.initial_learning_rate == 0.001
    for wrong in (float("nan"), float("inf")):
        with pytest.raises(OnwardError, match="must be a finite number"):
            run.optimizer.set_learning_rate(wrong)
    with pytest.raises(OnwardError, match="the learning rate must be a number, not 'fast'"):
        run.optimizer.set_learning_rate("fast")  # type: ignore[arg-type]


def test_an_update_before_a_training_step_changes_nothing(run: Run) -> None:
    before = run.values()
    run.optimizer.step()
    for name, array in before.items():
        np.testing.assert_array_equal(run.values()[name], array)


def test_the_rate_scales_the_update(frozen: Run) -> None:
    frozen.module(*batch())
    for rate in (0.5, 0.0):
        frozen.optimizer.set_learning_rate(rate)
        before = frozen.values()["fc2.weight"]
        frozen.optimizer.step()
        gradient = frozen.state.parameters["fc2.weight"].grad
        np.testing.assert_allclose(frozen.values()["fc2.weight"], before - np.float32(rate) * gradient, rtol=1e-6)


def test_linear_has_the_counts_the_right_way_round(run: Run) -> None:
    scheduler = LinearLRScheduler(run.optimizer, 2, 6, 1.0)
    assert rates(run, scheduler, 8) == pytest.approx([0, 0.5, 1, 0.75, 0.5, 0.25, 0, 0])
    assert run.optimizer._optimizer.state.initial_learning_rate == 1.0


def test_linear_without_warmup(run: Run) -> None:
    assert rates(run, LinearLRScheduler(run.optimizer, 0, 4, 1.0), 5) == pytest.approx([1, 0.75, 0.5, 0.25, 0])


def test_steps_are_those_of_the_optimizer(run: Run) -> None:
    scheduler = LinearLRScheduler(run.optimizer, warmup_step_count=1, total_step_count=2, initial_lr=0.2)
    for _ in range(3):
        scheduler.step()
        assert run.optimizer.get_learning_rate() == 0
    run.train(1)
    run.optimizer.set_learning_rate(7)
    scheduler.step()
    assert run.optimizer.get_learning_rate() == pytest.approx(0.2)


MAKERS: list[tuple[Callable[[Optimizer], LRScheduler], schedules.Schedule]] = [
    (lambda o: ConstantLRScheduler(o, 0.3, 2), schedules.Constant(0.3, 2)),
    (lambda o: CosineLRScheduler(o, 1, 5, 0.3, 0.1), schedules.Cosine(0.3, 5, 1, 0.1)),
    (lambda o: PolynomialLRScheduler(o, 1, 5, 0.3, 2.0), schedules.Polynomial(0.3, 5, 2.0, 1)),
    (lambda o: StepLRScheduler(o, 2, 0.3), schedules.Step(0.3, 2)),
    (lambda o: ExponentialLRScheduler(o, 0.3, 0.9), schedules.Exponential(0.3, 0.9)),
    (lambda o: OneCycleLRScheduler(o, 6, 0.3), schedules.OneCycle(0.3, 6)),
    (lambda o: LRScheduler(o, schedules.MultiStep(0.3, (1, 3))), schedules.MultiStep(0.3, (1, 3))),
]


@pytest.mark.parametrize(("make", "schedule"), MAKERS, ids=lambda value: type(value).__name__)
def test_schedulers_follow_their_schedules(
    make: Callable[[Optimizer], LRScheduler], schedule: schedules.Schedule, run: Run, mlp_folder: Path, tmp_path: Path
) -> None:
    scheduler = make(run.optimizer)
    assert rates(run, scheduler, 6) == [schedule(step) for step in range(6)]
    assert type(schedule).__name__ in repr(scheduler)
    CheckpointState.save_checkpoint(run.state, tmp_path / "saved", include_optimizer_state=True)
    resumed = Run.open(mlp_folder, tmp_path / "saved")
    assert resumed.optimizer.get_learning_rate() == schedule(5)
    make(resumed.optimizer)
    assert resumed.optimizer.get_learning_rate() == schedule(5)


def test_plateaus_survive_a_checkpoint(run: Run, mlp_folder: Path, tmp_path: Path) -> None:
    metrics = [3.0, 2.0, 2.5, 2.6, 2.7, 1.0, 1.1, 1.2, 1.3, 1.4]
    scheduler = ReduceOnPlateauLRScheduler(run.optimizer, 0.4, patience=1, factor=0.5)
    reference = schedules.ReduceOnPlateau(0.4, patience=1, factor=0.5)
    for metric in metrics[:4]:
        scheduler.step(metric)
        assert run.optimizer.get_learning_rate() == reference.observe(metric)
    scheduler.step()  # nothing was observed
    CheckpointState.save_checkpoint(run.state, tmp_path / "saved", include_optimizer_state=True)
    resumed = Run.open(mlp_folder, tmp_path / "saved")
    again = ReduceOnPlateauLRScheduler(resumed.optimizer, 0.4, patience=1, factor=0.5)
    assert again.state_dict() == scheduler.state_dict()
    for metric in metrics[4:]:
        again.step(metric)
        assert resumed.optimizer.get_learning_rate() == reference.observe(metric)
    # Other arguments, another schedule: it starts anew.
    other = ReduceOnPlateauLRScheduler(Run.open(mlp_folder, tmp_path / "saved").optimizer, 0.4, patience=2)
    assert "best" not in other.state_dict()
    other.load_state_dict(scheduler.state_dict())
    assert other.state_dict() == scheduler.state_dict()


def test_schedulers_need_an_optimizer(run: Run) -> None:
    with pytest.raises(TypeError, match="LinearLRScheduler needs an Optimizer, not Module"):
        LinearLRScheduler(run.module, 1, 2, 0.1)  # type: ignore[arg-type]

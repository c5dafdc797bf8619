"""Dropout by the training loop: other masks in every pass, the same ones for the same seed, and exact resume."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onward.api import CheckpointState, Module
from onward.errors import OnwardError
from onward.runtime.checkpoint import load
from onward.runtime.state import RandomState
from tests.api import toys


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return toys.generate(tmp_path, toys.with_dropout(toys.mlp(), "active"))


def losses(folder: Path, count: int = 4, **options: object) -> list[float]:
    """Without updates: only the masks are different."""
    module = toys.Run.open(folder, **options).module
    return [float(module(*toys.batch(0, 50))) for _ in range(count)]


def test_passes_differ_and_runs_do_not(folder):
    found = losses(folder)
    assert len(set(found)) == 4
    assert losses(folder) == found
    assert losses(folder, seed=0) == found
    assert set(losses(folder, seed=1)).isdisjoint(found)


def test_evaluation_drops_nothing_and_draws_nothing(folder):
    run = toys.Run.open(folder)
    run.module.eval()
    first = run.module(*toys.batch())
    assert run.module(*toys.batch()) == first
    assert run.state._state.random == RandomState()


@pytest.mark.parametrize("seed", [None, 7])
def test_resume_is_exact(folder, seed):
    whole = toys.Run.open(folder, seed=seed)
    whole.train(5)
    CheckpointState.save_checkpoint(whole.state, folder / "half", include_optimizer_state=True)
    after = whole.train(5, 5)
    resumed = toys.Run.open(folder, "half")
    assert resumed.train(5, 5) == after
    for name, array in whole.values().items():
        np.testing.assert_array_equal(resumed.values()[name], array)


def test_every_pass_counts_when_gradients_accumulate(folder):
    def train(run: toys.Run, begin: int, end: int) -> list[float]:
        found = []
        for step in range(begin, end):
            found += [float(run.module(*toys.batch(3 * step + part))) for part in range(3)]
            run.optimizer.step()
            run.module.lazy_reset_grad()
        return found

    whole = toys.Run.open(folder)
    train(whole, 0, 2)
    assert whole.state._state.random.passes == 6
    CheckpointState.save_checkpoint(whole.state, folder / "half", include_optimizer_state=True)
    assert train(toys.Run.open(folder, "half"), 2, 4) == train(whole, 2, 4)


def test_seed_and_position_are_in_the_checkpoint(folder):
    run = toys.Run.open(folder, seed=-3)
    run.train(2)
    CheckpointState.save_checkpoint(run.state, folder / "after")
    assert load(folder / "after").random == RandomState(-3, 2)
    toys.Run.open(folder, "after", seed=5)
    # A fresh checkpoint, and one from before there was such a state, begin at 0.
    assert load(folder / "checkpoint").random == RandomState()
    assert b'"random"' not in (folder / "checkpoint").read_bytes()


def test_a_failed_pass_does_not_count(folder):
    run = toys.Run.open(folder)
    with pytest.raises(OnwardError, match="inputs"):
        run.module(toys.batch()[0])
    assert run.state._state.random.passes == 0


@pytest.mark.parametrize("seed", [0.5, 2**63, "a"])
def test_wrong_seed(folder, seed):
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    with pytest.raises(OnwardError, match="a seed is an integer of 64 bits"):
        Module(folder / "training_model.onnx", state, seed=seed)


def test_models_that_draw_nothing_take_no_seed(tmp_path):
    folder = toys.generate(tmp_path, toys.mlp())
    run = toys.Run.open(folder)
    run.train(2)
    assert run.state._state.random == RandomState()


def test_ort_format(tmp_path):
    folder = toys.generate(tmp_path, toys.with_dropout(toys.mlp(), "active"), ort_format=True)
    expected = losses(folder)

    def in_ort_format(**options: object) -> list[float]:
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        module = Module(folder / "training_model.ort", state, **options)
        return [float(module(*toys.batch(0, 50))) for _ in range(4)]

    np.testing.assert_allclose(in_ort_format(), expected, rtol=1e-5)
    np.testing.assert_allclose(in_ort_format(seed=9), losses(folder, seed=9), rtol=1e-5)

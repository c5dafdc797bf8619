"""Our training against trajectories that onnxruntime-training 1.19.2 recorded (`make record-golden`)."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from onward import api, artifacts, onnxblock

from . import trajectory

TOLERANCE = 1e-5  # of the largest element


@pytest.mark.parametrize("case", trajectory.CASES, ids=lambda case: case.name)
def test_training_follows_the_original(case):
    expected = np.load(trajectory.HERE / f"{case.name}.npz")
    got = trajectory.run(case, SimpleNamespace(api=api, artifacts=artifacts, onnxblock=onnxblock))
    assert got.keys() == set(expected.files)
    errors = {key: np.abs(got[key] - expected[key]).max() / np.abs(expected[key]).max() for key in got}
    assert {key: error for key, error in errors.items() if not error < TOLERANCE} == {}


@pytest.mark.parametrize("case", trajectory.CASES, ids=lambda case: case.name)
def test_recorded_runs_move_every_parameter(case):
    """Without which the comparison would mean nothing."""
    recorded = np.load(trajectory.HERE / f"{case.name}.npz")
    for key in recorded.files:
        moved = np.abs(recorded[key][-1] - recorded[key][0]).max() / np.abs(recorded[key]).max()
        assert moved > 100 * TOLERANCE, key


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_the_models_are_those_that_were_recorded(name):
    assert onnx.load(trajectory.HERE / f"{name}.onnx") == getattr(trajectory, name)()

"""What comes back from the files of ORTTrainer, and that training continues from a state exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from onward.torch.orttrainer import ORTTrainer, ORTTrainerOptions, optim
from onward.torch.orttrainer import _checkpoint_storage as storage
from tests.orttrainer.test_orttrainer import AFTER, LINEAR, linear_model

CONTENT: dict[str, Any] = {
    "count": 3,
    "rate": 0.5,
    "done": True,
    "name": "onward",
    "list": [1, 2, 3],
    "mixed": [1, "a", None],
    "inner": {"array": np.arange(4.0), "deeper": {"half": torch.ones(2, dtype=torch.float16)}, "empty": {}},
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("storage") / "content"
    storage.save(CONTENT, path)
    return path


@pytest.mark.parametrize(
    ("key", "expected", "kind"),
    [
        ("count", 3, np.int64),
        ("rate", 0.5, np.float64),
        ("done", True, np.bool_),
        ("name", "onward", str),
        ("list", [1, 2, 3], np.ndarray),
        ("inner/array", [0, 1, 2, 3], np.ndarray),
        ("inner/deeper/half", [1, 1], np.ndarray),
    ],
)
def test_values_come_back_as_those_of_numpy(file: Path, key: str, expected: Any, kind: type) -> None:
    for written in (key, f"{key}/"):  # as the original's keys are put together
        found = storage.load(file, key=written)
        assert isinstance(found, kind)
        assert np.array_equal(found, expected)


def test_other_lists_and_empty_dictionaries_stay_what_they_are(file: Path) -> None:
    loaded = storage.load(file)
    assert loaded["mixed"] == [1, "a", None]
    assert loaded["inner"]["empty"] == {}
    assert loaded["inner"]["deeper"]["half"].dtype == np.float16


@pytest.mark.parametrize(
    "config",
    [
        optim.AdamConfig(lr=0.1, lambda_coef=0.01),
        optim.AdamConfig(lr=0.1, lambda_coef=0.01, weight_decay_mode=AFTER, do_bias_correction=False),
        optim.LambConfig(lr=0.1, lambda_coef=0.01, do_bias_correction=True),
        optim.SGDConfig(lr=0.1),
    ],
    ids=["Adam", "Adam, after", "LAMB", "SGD"],
)
def test_the_state_of_an_optimizer_is_kept_to_the_last_bit(config: Any) -> None:
    """Moments that are stored otherwise than they are called would be rounded on the way."""
    gradients = torch.from_numpy(np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32))

    whole, broken = (ORTTrainer(linear_model(), LINEAR, config, options=ORTTrainerOptions({})) for _ in range(2))
    for gradient in gradients:
        for trainer in (whole, broken):
            trainer.train_step(gradient)
        broken.load_state_dict(broken.state_dict())
    expected, found = whole.state_dict(), broken.state_dict()
    for section in ("model", "optimizer"):
        for name, own in expected[section].items():
            for key, array in own.items():
                np.testing.assert_array_equal(found[section][name][key], array, err_msg=f"{section} {name} {key}")

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api import toys


@pytest.fixture(scope="session")
def mlp_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Artifacts of the MLP, all trained by AdamW; shared, so only read from it."""
    return toys.generate(tmp_path_factory.mktemp("mlp"), toys.mlp(), nominal_checkpoint=True)


@pytest.fixture(scope="session")
def frozen_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Artifacts of the MLP with its first layer frozen, trained by SGD."""
    return toys.generate(
        tmp_path_factory.mktemp("frozen"),
        toys.mlp(),
        requires_grad=["fc2.weight", "fc2.bias"],
        frozen_params=["fc1.weight", "fc1.bias"],
        optimizer="sgd",
        nominal_checkpoint=True,
    )


@pytest.fixture(scope="session")
def cnn_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Artifacts of the CNN with BatchNormalization."""
    return toys.generate(tmp_path_factory.mktemp("cnn"), toys.cnn())


@pytest.fixture
def run(mlp_folder: Path) -> toys.Run:
    return toys.Run.open(mlp_folder)


@pytest.fixture
def frozen(frozen_folder: Path) -> toys.Run:
    return toys.Run.open(frozen_folder)

"""Small models of Hugging Face, made from configurations, where `transformers` is installed."""

from __future__ import annotations

import pytest
import torch

from tests.ortmodule.families import FAMILIES
from tests.ortmodule.optimizers import OPTIMIZERS
from tests.ortmodule.test_models import CLOSE, compare_training

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

# Similarities are multiplied by 14, and rounding with them: torch is 7e-5 from double precision, ORTModule 6e-5.
CLOSE_TO_TORCH = {"CLIPModel": {"rtol": 1e-4, "atol": 2e-4}}


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name: str) -> None:
    """Results, all gradients and ten steps of each optimizer are those of torch, over batches of different sizes."""
    settings, arguments = FAMILIES[name]
    made = getattr(transformers, name)
    torch.manual_seed(0)
    reference = made(made.config_class(**settings)).train()
    close = CLOSE_TO_TORCH.get(name, CLOSE)
    assert not compare_training(reference, arguments, OPTIMIZERS, close)

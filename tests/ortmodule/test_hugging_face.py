"""Small models of Hugging Face, made from configurations, where `transformers` is installed."""

from __future__ import annotations

import pytest
import torch

from tests.ortmodule.families import FAMILIES
from tests.ortmodule.optimizers import OPTIMIZERS
from tests.ortmodule.test_models import compare_training

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

# torch's exporters cannot write how it counts the rows of each expert.
LEFT_TO_TORCH = {"MixtralForCausalLM"}


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name: str) -> None:
    """Results, all gradients and ten steps of each optimizer are those of torch, over batches of different sizes."""
    settings, arguments = FAMILIES[name]
    made = getattr(transformers, name)
    torch.manual_seed(0)
    reference = made(made.config_class(**settings)).train()
    assert compare_training(reference, arguments, OPTIMIZERS) == (name in LEFT_TO_TORCH)

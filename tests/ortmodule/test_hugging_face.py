"""Small models of Hugging Face, made from configurations, where `transformers` is installed."""

from __future__ import annotations

import pytest
import torch

from tests.ortmodule.families import FAMILIES
from tests.ortmodule.optimizers import OPTIMIZERS
from tests.ortmodule.test_models import CLOSE, compare_training

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

# torch's exporters cannot write how it counts the rows of each expert.
LEFT_TO_TORCH = {"MixtralForCausalLM"}
# Fifty normalisations of few numbers in a row: after three steps torch itself is far from what it gives in double
# precision. (tests/ortmodule/models.py has the block, for ten steps.)
STEPS = {"MobileNetV2ForImageClassification": 1}
# Its similarities are multiplied by 14, and rounding with them: torch's are 7e-5 from those of double precision, ours 6e-5.
CLOSE_TO_TORCH = {"CLIPModel": {"rtol": 1e-4, "atol": 2e-4}}


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name: str) -> None:
    """Results, all gradients and ten steps of each optimizer are those of torch, over batches of different sizes."""
    settings, arguments = FAMILIES[name]
    made = getattr(transformers, name)
    torch.manual_seed(0)
    reference = made(made.config_class(**settings)).train()
    steps, close = STEPS.get(name, 10), CLOSE_TO_TORCH.get(name, CLOSE)
    assert compare_training(reference, arguments, OPTIMIZERS, steps, close) == (name in LEFT_TO_TORCH)

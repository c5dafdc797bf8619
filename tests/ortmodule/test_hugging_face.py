"""Small models of Hugging Face, made from configurations, where `transformers` is installed."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch

from onward.torch import ORTModule

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

BERT = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
}
VIT = {**BERT, "image_size": 8, "patch_size": 4}
GPT = {"vocab_size": 50, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "use_cache": False}
DISTIL = {"vocab_size": 50, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": 32}
# Model -> its configuration, and what the labels are.
FAMILIES: dict[str, tuple[dict[str, Any], str]] = {
    "BertForSequenceClassification": (BERT, "class"),
    "RobertaForTokenClassification": (BERT, "tokens"),
    "DistilBertForMaskedLM": (DISTIL, "ids"),
    "GPT2LMHeadModel": (GPT, "ids"),
    "LlamaForCausalLM": ({**BERT, "use_cache": False}, "ids"),
    "ViTForImageClassification": (VIT, "class"),
}


def arguments(rows: int, length: int, labels: str, pictures: bool) -> dict[str, Any]:
    ids, mask = torch.randint(2, 50, (rows, length)), torch.ones(rows, length, dtype=torch.long)
    mask[0, length - 2 :] = 0
    targets = {"class": torch.arange(rows) % 2, "tokens": ids % 2, "ids": ids}[labels]
    given = {"pixel_values": torch.randn(rows, 3, 8, 8)} if pictures else {"input_ids": ids, "attention_mask": mask}
    return {**given, "labels": targets}


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name: str) -> None:
    """Losses and all gradients are those of torch, with Dropout, over batches of different sizes."""
    settings, labels = FAMILIES[name]
    made = getattr(transformers, name)
    torch.manual_seed(0)
    reference = made(made.config_class(**settings)).train()
    module = ORTModule(copy.deepcopy(reference))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # what falls back to torch warns
        for number in range(4):
            given = arguments(3 + number % 2, 7 + number, labels, name.startswith("ViT"))
            found = []
            for net in (reference, module):
                net.zero_grad()
                torch.manual_seed(number)
                found.append(net(**given))
                found[-1].loss.backward()
            assert type(found[0]) is type(found[1])
            torch.testing.assert_close(found[1].loss, found[0].loss, rtol=1e-4, atol=1e-5)
            for (key, wanted), (_, got) in zip(reference.named_parameters(), module.named_parameters(), strict=True):
                assert (wanted.grad is None) == (got.grad is None), key
                if wanted.grad is not None:
                    torch.testing.assert_close(got.grad, wanted.grad, rtol=1e-3, atol=2e-5)
    assert type(found[1].loss.grad_fn).__name__ == "_ORTModuleFunctionBackward"

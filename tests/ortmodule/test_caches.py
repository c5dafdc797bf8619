"""Caches of keys and values, which language models return unless told otherwise."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from onward.torch import ORTModule
from onward.torch.ortmodule.caches import opened
from tests.ortmodule.test_models import CLOSE

WORDS = 40


def gpt2() -> PreTrainedModel:
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
    return GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, bos_token_id=1, eos_token_id=1, **sizes))


def t5() -> PreTrainedModel:
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    return T5ForConditionalGeneration(T5Config(vocab_size=WORDS, decoder_start_token_id=0, **sizes))


def sliding() -> PreTrainedModel:
    """Layers that keep the last four words, and count how many they have seen."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return MistralForCausalLM(
        MistralConfig(vocab_size=WORDS, num_key_value_heads=1, sliding_window=4, pad_token_id=0, **sizes)
    )


def parts(cache: object) -> tuple[list[torch.Tensor], list[str]]:
    leaves = torch.utils._pytree.tree_leaves(opened(cache))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return tensors, [repr(leaf) for leaf in leaves if not isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize(
    "make", [gpt2, pytest.param(t5, marks=pytest.mark.slow), pytest.param(sliding, marks=pytest.mark.slow)]
)
def test_caches_among_the_results(make: Callable[[], PreTrainedModel]) -> None:
    torch.manual_seed(0)
    net = make().train()
    for layer in net.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.1
    module = ORTModule(copy.deepcopy(net))
    for rows, words in ((2, 8), (3, 5), (2, 12)):
        ids = torch.randint(2, WORDS, (rows, words))
        found = []
        for model in (net, module):
            model.zero_grad()
            torch.manual_seed(1)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                returned = model(input_ids=ids, labels=ids)
            tensors, others = parts(returned.past_key_values)
            # They have gradients, too.
            (returned.loss + sum(t.square().mean() for t in tensors if t.requires_grad)).backward()
            gradients = [parameter.grad for parameter in model.parameters()]
            found.append((type(returned.past_key_values), others, [returned.loss, *tensors], gradients))
        (kind, others, results, gradients), (own_kind, own_others, own_results, own_gradients) = found
        assert (own_kind, own_others) == (kind, others)
        assert len(results) > 2
        torch.testing.assert_close(own_results, results, **CLOSE)
        torch.testing.assert_close(own_gradients, gradients, **CLOSE)


def test_a_cache_goes_on_in_torch() -> None:
    """What the graph returns is a cache like any other: the next word is attended to with it."""
    torch.manual_seed(0)
    net = gpt2().eval()
    module = ORTModule(copy.deepcopy(net))
    ids = torch.randint(2, WORDS, (2, 7))
    with torch.no_grad():
        cache = module(input_ids=ids[:, :6]).past_key_values
        again = module(input_ids=ids[:, :6]).past_key_values
        assert cache.get_seq_length() == 6
        following = module.module(input_ids=ids[:, 6:], past_key_values=cache).logits[:, -1]
        whole = net(input_ids=ids).logits[:, -1]
    assert cache.get_seq_length() == 7  # torch has added a word
    assert again.get_seq_length() == 6
    torch.testing.assert_close(following, whole, **CLOSE)


def test_words_are_generated() -> None:
    torch.manual_seed(0)
    net = gpt2().eval()
    ids = torch.randint(2, WORDS, (2, 5))
    found = [model.generate(ids, max_new_tokens=4, do_sample=False) for model in (net, ORTModule(net))]
    assert torch.equal(*found)

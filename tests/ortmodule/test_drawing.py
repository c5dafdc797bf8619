"""Numbers that modules draw into tensors, by torch's generator: layers that are left out, Gumbel's noise."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  as everybody calls it
from torch import Tensor, nn
from torch.distributions import Categorical, Normal, kl_divergence

from onward.torch import ORTModule
from onward.torch.ortmodule.drawing import drawing_is_told
from tests.ortmodule.models import Function
from tests.ortmodule.test_models import CLOSE, compare, step


def _distributions(x: Tensor) -> Any:
    """What autoencoders and agents do."""
    mean, scale = x.chunk(2, 1)
    normal, choice = Normal(mean, scale.exp()), Categorical(logits=x)
    drawn, chosen = normal.rsample(), choice.sample()
    return normal.log_prob(drawn), kl_divergence(normal, Normal(0.0, 1.0)), choice.log_prob(chosen), choice.entropy()


def _unused(x: Tensor) -> Tensor:
    """Results that nothing depends on are not in the graph, but their masks are drawn."""
    hidden = F.dropout(x, 0.3)
    F.dropout(hidden @ hidden.T, 0.5)
    torch.randn(2, x.shape[0])
    F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.4)
    return F.dropout(hidden, 0.2)


CASES: dict[str, Callable[[Any, Tensor], Any]] = {
    "rows are left out": lambda m, x: m.fc(x) * x.new_empty((x.shape[0], 1)).bernoulli_(0.8).div_(0.8),
    "after a Dropout": lambda m, x: F.dropout(m.fc(x), 0.3) * torch.empty(x.shape[0], 1).bernoulli_(p=0.6),
    "by probabilities": lambda m, x: x.sum() * torch.bernoulli(m.fc(x).sigmoid()),
    "by a method": lambda m, x: m.fc(x) * m.fc(x).sigmoid().bernoulli(),
    "by one probability": lambda m, x: m.fc(x) * torch.bernoulli(x.detach()[:1, :1], p=0.6),
    "from distributions": lambda m, x: _distributions(m.fc(x)),
    "by one probability, by a method": lambda m, x: m.fc(x) * x.detach().mT.bernoulli(0.3).sum(),
    "for nothing": lambda m, x: _unused(m.fc(x)),
    "exponential": lambda m, x: F.gumbel_softmax(m.fc(x), tau=0.7),
    "exponential, as ones and zeros": lambda m, x: F.gumbel_softmax(m.fc(x), hard=True),
    "uniform": lambda m, x: m.fc(x) + torch.empty(x.shape[0], 6).uniform_(-0.1, 0.3),
    "normal": lambda m, x: m.fc(x) + torch.empty(x.shape[0], 6).normal_(1.0, std=0.1),
    "whole numbers": lambda m, x: (
        m.fc(x) * torch.randint(50, (x.shape[0], 1))
        + torch.randint(-2, 9, size=(6,), dtype=torch.int32)
        + torch.randint(high=3, size=[6]) * torch.empty(1).random_(5)
        + torch.randint(1, high=3, size=(6,))
    ),
    "by a generator that is none": lambda m, x: (
        m.fc(x)[torch.randperm(x.shape[0], generator=None, device=x.device)]
        + torch.randn(x.shape[0], 6, generator=None, dtype=x.dtype, layout=torch.strided)
        + torch.rand((x.shape[0], 1), generator=None)
        + torch.randint(4, (x.shape[0], 1), generator=None)
    ),
    "whole numbers like others": lambda m, x: m.fc(torch.randint_like(x, 2, 5) * x + torch.randint_like(x, high=3)),
    "normal, by a function": lambda m, x: (
        m.fc(x) * torch.normal(1.0, 0.1, (x.shape[0], 1))
        + torch.normal(m.fc(x), 0.5)
        + torch.normal(0.0, x.detach().exp()[:, :1])
        + torch.normal(x[:, :1], x.exp()[:1, :1])
    ),
    "an order": lambda m, x: m.fc(x)[torch.randperm(x.shape[0])] * 0.3 + m.fc(x) * 0.7,
    "several": lambda m, x: m.fc(x).normal_() + torch.rand(6) + torch.empty(6).exponential_(2) * m.fc(x),
}


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_of_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE")
    torch.manual_seed(0)
    reference = Function(CASES[name], fc=nn.Linear(4, 6))
    module = ORTModule(copy.deepcopy(reference))
    for seed in range(4):
        args = (torch.randn(3 + seed % 2, 4, requires_grad=True),)
        results, states = [], []
        for net in (module, reference):
            net.zero_grad()
            results.append((step(net, args, seed), [_or_zero(p.grad) for p in net.parameters()]))
            states.append(torch.get_rng_state())
        compare(results[0][0], results[1][0])
        torch.testing.assert_close(results[0][1], results[1][1], **CLOSE)
        assert torch.equal(*states)


def _or_zero(gradient: Tensor | None) -> Tensor:
    return torch.zeros(()) if gradient is None or not gradient.any() else gradient


def test_methods_are_as_they_were() -> None:
    names = "bernoulli", "bernoulli_", "exponential_", "normal_", "random_", "uniform_"
    functions = "bernoulli", "normal", "randint", "randint_like", "randperm"
    before = *(getattr(torch, name) for name in functions), *(getattr(torch.Tensor, name) for name in names)
    with drawing_is_told():
        assert torch.bernoulli is not before[0]
        assert "uniform_" in vars(torch.Tensor)
        generator = torch.Generator().manual_seed(0)
        assert torch.equal(
            torch.empty(3).normal_(generator=generator), torch.randn(3, generator=generator.manual_seed(0))
        )
        assert torch.equal(
            torch.randint(9, (3,), generator=generator.manual_seed(0)),
            torch.empty(3, dtype=torch.int64).random_(9, generator=generator.manual_seed(0)),
        )
    assert before == (*(getattr(torch, name) for name in functions), *(getattr(torch.Tensor, name) for name in names))
    assert not set(names) & set(vars(torch.Tensor))

"""Numbers that modules draw into tensors, by torch's generator: layers that are left out, Gumbel's noise."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  as everybody calls it
from torch import Tensor, nn

from onward.torch import ORTModule
from onward.torch.ortmodule.drawing import drawing_is_told
from tests.ortmodule.models import Function
from tests.ortmodule.test_models import CLOSE, compare, step

CASES: dict[str, Callable[[Any, Tensor], Any]] = {
    "rows are left out": lambda m, x: m.fc(x) * x.new_empty((x.shape[0], 1)).bernoulli_(0.8).div_(0.8),
    "after a Dropout": lambda m, x: F.dropout(m.fc(x), 0.3) * torch.empty(x.shape[0], 1).bernoulli_(p=0.6),
    "by probabilities": lambda m, x: x.sum() * torch.bernoulli(m.fc(x).sigmoid()),
    "by a method": lambda m, x: m.fc(x) * m.fc(x).sigmoid().bernoulli(),
    "exponential": lambda m, x: F.gumbel_softmax(m.fc(x), tau=0.7),
    "exponential, as ones and zeros": lambda m, x: F.gumbel_softmax(m.fc(x), hard=True),
    "uniform": lambda m, x: m.fc(x) + torch.empty(x.shape[0], 6).uniform_(-0.1, 0.3),
    "normal": lambda m, x: m.fc(x) + torch.empty(x.shape[0], 6).normal_(1.0, std=0.1),
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
    names = "bernoulli", "bernoulli_", "exponential_", "normal_", "uniform_"
    before = torch.bernoulli, *(getattr(torch.Tensor, name) for name in names)
    with drawing_is_told():
        assert torch.bernoulli is not before[0]
        assert "uniform_" in vars(torch.Tensor)
        generator = torch.Generator().manual_seed(0)
        assert torch.equal(
            torch.empty(3).normal_(generator=generator), torch.randn(3, generator=generator.manual_seed(0))
        )
    assert before == (torch.bernoulli, *(getattr(torch.Tensor, name) for name in names))
    assert not set(names) & set(vars(torch.Tensor))

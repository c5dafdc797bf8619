"""`torch.multinomial` inside of a module: the choices that torch would make, from the same seed."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  as everybody calls it
from torch import nn

from onward.torch import ORTModule
from onward.torch.ortmodule import FallbackWarning
from tests.ortmodule.models import Function
from tests.ortmodule.test_models import CLOSE

COUNTS = [(1, False), (1, True), (2, True), (2, False), (5, True)]


@pytest.fixture(autouse=True)
def _without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE")


@pytest.mark.parametrize(("count", "replacement"), COUNTS)
@pytest.mark.parametrize("shape", [(6,), (3, 6)])
def test_choices_by_an_argument(shape: tuple[int, ...], count: int, replacement: bool) -> None:
    module = ORTModule(Function(lambda m, p: torch.multinomial(p, count, replacement=replacement)))
    weights = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    weights[..., 2] = 0.0  # never chosen
    for seed in range(8):
        torch.manual_seed(seed)
        expected, after = module.module(weights), torch.get_rng_state()
        torch.manual_seed(seed)
        assert torch.equal(module(weights), expected)
        assert torch.equal(torch.get_rng_state(), after)


def _policy(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What two policies would do; between the choices, something else is drawn."""
    layer: nn.Module = module.fc  # type: ignore[assignment]
    p = layer(F.dropout(x, 0.25)).softmax(-1)
    several = torch.multinomial(p, 3, replacement=True)
    dropped = F.dropout(p, 0.5)
    return p.gather(1, several).log(), dropped.gather(1, torch.multinomial(p, 2))


def test_choices_among_what_is_computed() -> None:
    torch.manual_seed(0)
    module = ORTModule(Function(_policy, fc=nn.Linear(4, 6)))
    parameters = list(module.parameters())
    for seed, rows in enumerate(itertools.islice(itertools.cycle((3, 5, 4)), 6)):
        x = torch.randn(rows, 4)
        results = []
        for net in (module, module.module):
            torch.manual_seed(seed)
            first, second = net(x)
            results.append((first, second, torch.autograd.grad(first.sum() + second.sum(), parameters)))
        torch.testing.assert_close(*results, **CLOSE)


def test_choices_by_a_generator_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORTMODULE_FALLBACK_POLICY")
    source = torch.Generator()
    module = ORTModule(Function(lambda m, p: torch.multinomial(p, 2, generator=source)))
    weights = torch.rand(6, generator=torch.Generator().manual_seed(0))
    with pytest.warns(FallbackWarning):
        module(weights)
    state = source.get_state()
    found = module(weights)
    source.set_state(state)
    assert torch.equal(torch.multinomial(weights, 2, generator=source), found)

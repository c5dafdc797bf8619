"""Losses that are made of gradients."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from onward.torch import ORTModule
from onward.torch.ortmodule import FallbackWarning
from tests.ortmodule.models import Function


def penalty(net: nn.Module) -> list[Tensor]:
    """The norm of the gradient of a critic is to be 1."""
    x = torch.randn(5, 4, requires_grad=True)
    y = net(x)
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (y.mean() + (slope.norm(dim=1) - 1).square().mean()).backward()
    assert x.grad is not None
    return [slope, x.grad]


def equation(net: nn.Module) -> list[Tensor]:
    """u'' + u = 0."""
    x = torch.randn(5, 4, requires_grad=True)
    u = net(x)
    (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
    (curvature.sum(1) + u.squeeze(1)).square().mean().backward()
    return [slope, curvature]


def adaptation(net: nn.Module) -> list[Tensor]:
    """The loss after two steps of training."""
    x, weights = torch.randn(5, 4), dict(net.named_parameters())
    for _ in range(2):
        loss = functional_call(net, weights, (x,)).square().mean()
        gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        weights = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), gradients, strict=True)}
    loss = functional_call(net, weights, (2 * x,)).square().mean()
    loss.backward()
    return [loss]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))


def critic() -> nn.Module:
    """With statistics and vectors that each call changes, and random numbers."""
    last = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 1))
    return nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Softplus(), last)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], list[Tensor]]]] = {
    "penalty": (mlp, penalty),
    "penalty of a critic": (critic, penalty),
    "equation": (mlp, equation),
    "adaptation": (mlp, adaptation),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_gradients(name: str) -> None:
    make, loss = CASES[name]
    torch.manual_seed(0)
    reference = make()
    module = copy.deepcopy(reference)
    net = ORTModule(module)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        for seed in range(2):
            found = []
            for each in (net, reference):
                each.zero_grad()
                torch.manual_seed(seed)
                results = loss(each)
                found.append([*results, *(p.grad for p in each.parameters()), *each.buffers(), torch.get_rng_state()])
            torch.testing.assert_close(*found, rtol=1e-3, atol=1e-5)


def test_of_one_argument_that_is_computed_from_another() -> None:
    module = Function(lambda m, x, y: (x, m.fc(x * y).tanh(), x.exp()), fc=nn.Linear(4, 3))
    found = []
    for net in (ORTModule(module), module):
        x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
        results = net(x, 2 * x + 1)
        (slope,) = torch.autograd.grad(sum(y.sum() for y in results), x, create_graph=True)
        found.append([slope, *torch.autograd.grad(slope.square().sum(), [x, module.fc.weight])])
    torch.testing.assert_close(*found)


def test_of_a_module_that_has_changed_since() -> None:
    module = mlp()
    x = torch.randn(3, 4, requires_grad=True)
    y = ORTModule(module)(x)
    module.eval()
    with pytest.raises(RuntimeError, match="Take them before the module is changed"):
        torch.autograd.grad(y.sum(), x, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x), torch.autograd.grad(module(x).sum(), x))


def test_of_half_precision_there_are_none() -> None:
    net, x = ORTModule(nn.Linear(4, 2)), torch.randn(3, 4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = net(x)
    (slope,) = torch.autograd.grad(y.float().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no gradients of gradients in half precision"):
        slope.sum().backward()

"""Each module and a copy of it that torch runs: the same results, gradients, buffers and training."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from onward.torch import ORTModule
from onward.torch.ortmodule import FallbackWarning
from tests.ortmodule.models import CASES
from tests.ortmodule.optimizers import OPTIMIZERS

# What two implementations of single precision differ by.
CLOSE: dict[str, float] = {"rtol": 1e-4, "atol": 2e-5}
FAST = [
    "cnn, batch norm, dropout",
    "language model",
    "several inputs and outputs",
    "layers left out",
    "variational autoencoder",
    "instance norm with running statistics",
    "alpha dropout",
]


def loss_of(returned: Any) -> torch.Tensor:
    tensors = [t for t in pytree.tree_leaves(returned) if isinstance(t, torch.Tensor) and t.requires_grad]
    return sum((t.square().mean() for t in tensors), start=torch.zeros((), dtype=tensors[0].dtype))


def step(module: nn.Module, args: Any, seed: int) -> tuple[Any, list[torch.Tensor | None]]:
    """Forward and backward; what the module returns, and the gradients of its arguments, a tuple or named ones."""
    given = pytree.tree_map_only(torch.Tensor, lambda a: a.detach().clone().requires_grad_(a.requires_grad), args)
    torch.manual_seed(seed)
    returned = module(**given) if isinstance(given, dict) else module(*given)
    loss_of(returned).backward()
    return returned, [a.grad for a in pytree.tree_leaves(given) if isinstance(a, torch.Tensor)]


def compare(found: Any, expected: Any, close: dict[str, float] = CLOSE) -> None:
    first, second = pytree.tree_flatten(found), pytree.tree_flatten(expected)
    assert first[1] == second[1]
    for got, wanted in zip(first[0], second[0], strict=True):
        if isinstance(wanted, torch.Tensor):
            assert got.requires_grad == wanted.requires_grad
            torch.testing.assert_close(got, wanted, **close)
        else:
            assert got == wanted


def train_alike(
    module: ORTModule,
    reference: nn.Module,
    arguments: Callable[[int], Any],
    optimizer: str,
    close: dict[str, float],
) -> None:
    """Ten steps of both: results, gradients, buffers and parameters stay the same."""
    optimizers = [OPTIMIZERS[optimizer](m.parameters()) for m in (reference, module)]
    for number in range(10):
        args = arguments(4 + number % 3)
        expected, input_gradients = step(reference, args, number)
        found, own_gradients = step(module, args, number)
        compare(found, expected, close)
        compare(own_gradients, input_gradients, close)
        # What cancels out is as far off as the rounding of what it is the sum of.
        largest = max((float(p.grad.abs().max()) for p in reference.parameters() if p.grad is not None), default=0.0)
        for (key, wanted), (own, got) in zip(reference.named_parameters(), module.named_parameters(), strict=True):
            assert key == own
            assert (wanted.grad is None) == (got.grad is None), key
            if wanted.grad is not None:
                scale = float(wanted.grad.abs().max())
                torch.testing.assert_close(got.grad, wanted.grad, rtol=1e-3, atol=1e-3 * scale + 1e-5 * largest)
        for each in optimizers:
            each.step()
            each.zero_grad()
    compare(dict(module.named_buffers()), dict(reference.named_buffers()))
    # LAMB makes steps of the size of the weights, of gradients too that are nothing but rounding.
    assert list(module.state_dict()) == list(reference.state_dict())
    torch.testing.assert_close(dict(module.state_dict()), dict(reference.state_dict()), rtol=2e-3, atol=1e-4)


def compare_training(
    reference: nn.Module,
    arguments: Callable[[int], Any],
    optimizers: Iterable[str],
    close: dict[str, float] = CLOSE,
) -> bool:
    """Train a module and a copy, with each optimizer from the same weights; whether torch ran some of it."""
    module = ORTModule(copy.deepcopy(reference))
    start = copy.deepcopy(reference.state_dict())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for optimizer in optimizers:
            for net in (reference, module):
                net.load_state_dict(start)
            train_alike(module, reference, arguments, optimizer, close)
        reference.eval(), module.eval()
        args = arguments(5)
        returned = []
        for net in (module, reference):
            torch.manual_seed(0)
            with torch.no_grad():
                returned.append(net(**args) if isinstance(args, dict) else net(*args))
        compare(*returned, close)
    return any(warning.category is FallbackWarning for warning in caught)


@pytest.mark.parametrize("name", FAST)
def test_it_trains_as_torch_does(name: str) -> None:
    make, arguments = CASES[name]
    torch.manual_seed(0)
    assert not compare_training(make(), arguments, ["SGD"])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_it_trains_as_torch_does_with_each_optimizer(name: str) -> None:
    make, arguments = CASES[name]
    torch.manual_seed(0)
    assert not compare_training(make(), arguments, OPTIMIZERS)

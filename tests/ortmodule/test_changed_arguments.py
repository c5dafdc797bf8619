"""Modules that change their arguments in place: so do their graphs, with the gradients of torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from onward.torch import ORTModule
from onward.torch.ortmodule import FallbackWarning
from tests.ortmodule.models import Function
from tests.ortmodule.test_models import CLOSE

Arguments = tuple[list[Tensor], list[Tensor]]  # what gradients are asked for of, and what the module is called with


def _scattered(m: Any, rows: Tensor, chosen: Tensor, new: Tensor) -> Tensor:
    rows[chosen] = new
    return rows


def _cached(m: Any, cache: Tensor, x: Tensor) -> Tensor:
    cache[:, :2] = m.fc(x)[:, :2]
    return x @ cache.t()


def _both(m: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x += y
    y.mul_(3)
    return m.fc(x), y


def _nothing(m: Any, x: Tensor, y: Tensor) -> None:
    x.add_(m.fc(y))


def _computed(rows: int) -> Arguments:
    """An argument with a gradient that is no leaf: those must not be changed."""
    x = torch.randn(rows, 4, requires_grad=True)
    return [x], [x * 2]


def _rows_and_new(rows: int) -> Arguments:
    new = torch.randn(2, 4, requires_grad=True)
    return [new], [torch.zeros(rows, 4), torch.tensor([0, rows - 1]), new]


def _two(rows: int) -> Arguments:
    return [], [torch.randn(rows, 4), torch.randn(rows, 4)]


CASES: dict[str, tuple[Callable[..., Any], Callable[[int], Arguments]]] = {
    "rows are assigned, and returned": (_scattered, _rows_and_new),
    "a part is assigned": (_cached, _two),
    "two of them": (_both, _two),
    "nothing is returned": (_nothing, _two),
    "with a gradient": (lambda m, x: m.fc(x.mul_(2.0)), _computed),
}


def _run(net: nn.Module, made: Arguments) -> tuple[Any, ...]:
    leaves, args = made
    returned = net(*args)
    results = [t for t in (returned if isinstance(returned, tuple) else (returned,)) if t is not None]
    # What was changed may be used afterwards in place of what is returned.
    ends = [t for t in (*results, *args) if t.requires_grad]
    gradients = torch.autograd.grad([t.sin().sum() for t in ends], [*leaves, *net.parameters()], allow_unused=True)
    known = [torch.zeros(()) if g is None or not g.any() else g for g in gradients]
    same = [[argument is result for argument in args] for result in results]
    return [t.detach() for t in results], [t.detach().clone() for t in args], known, same


@pytest.mark.parametrize("name", CASES)
def test_arguments_are_changed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE")
    function, make = CASES[name]
    torch.manual_seed(0)
    reference = Function(function, fc=nn.Linear(4, 4))
    module = ORTModule(copy.deepcopy(reference))
    for seed in range(4):
        found = []
        for net in (module, reference):
            torch.manual_seed(seed)
            found.append(_run(net, make(3 + seed % 2)))
        torch.testing.assert_close(found[0][:3], found[1][:3], **CLOSE)
        assert found[0][3] == found[1][3]
    with torch.no_grad():
        first = make(3)[1]
        second = [argument.clone() for argument in first]
        module(*first), reference(*second)
    torch.testing.assert_close(first, second, **CLOSE)


def test_arguments_that_share_their_memory() -> None:
    module, x = ORTModule(Function(lambda m, x, y: x.add_(y) * y)), torch.ones(2, 2)
    module(torch.ones(2, 2), torch.ones(2, 2))
    with pytest.warns(FallbackWarning, match="shares its memory"):
        assert module(x, x).tolist() == [[4.0, 4.0], [4.0, 4.0]]
    assert x.tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_a_leaf_with_a_gradient() -> None:
    """As torch says it."""
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        ORTModule(Function(lambda m, x: x.mul_(2)))(torch.ones(2, requires_grad=True))

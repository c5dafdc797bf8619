"""Decisions by tensors among the arguments: a flag has graphs for each value; what varies is left to torch."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from onward.torch import ORTModule
from onward.torch.ortmodule import FallbackWarning, ORTModuleFallbackException
from tests.ortmodule.models import Function
from tests.ortmodule.test_models import CLOSE, compare


def _either(module: nn.Module, flag: Tensor, x: Tensor, one: Tensor) -> Tensor:
    """A decision by `flag`, and another number that is data."""
    fc: Any = module.fc
    return fc(x).relu() * flag + one if flag else fc(x) + one


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE")


@pytest.mark.usefixtures("strict")
def test_a_flag() -> None:
    reference = Function(_either, fc=nn.Linear(4, 3))
    module, x = ORTModule(copy.deepcopy(reference)), torch.randn(5, 4)
    for flag, number in ((2.0, 1.0), (0.0, 1.0), (2.0, 7.0), (0.0, 5.0)):
        given = torch.tensor([flag]), x, torch.tensor([number])
        torch.testing.assert_close(module(*given), reference(*given), **CLOSE)
    plans = {id(plan) for found in module._runner.plans.values() for plan in found.values()}
    assert len(plans) == 2  # `one` is data


def test_too_many_values() -> None:
    reference = Function(_either, fc=nn.Linear(4, 3))
    module, x, one = ORTModule(copy.deepcopy(reference)), torch.randn(5, 4), torch.ones(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for value in range(6):
            flag = torch.tensor([float(value)])
            torch.testing.assert_close(module(flag, x, one), reference(flag, x, one), **CLOSE)
    said = [warning.message for warning in caught if warning.category is FallbackWarning]
    assert len(said) == 1
    assert "data-dependent" in str(said[0])
    assert not module.runs_on_onnxruntime(torch.tensor([7.0]), x, one)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module(torch.tensor([8.0]), x, one)


class Initialised(nn.Module):
    """Its first call sets it up, as that of normalising flows and of codebooks does; `mode` is the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("is_set", torch.tensor(False))
        self.register_buffer("shift", torch.zeros(4))
        self.register_buffer("mode", torch.zeros(1))
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        if self.training and not self.is_set:
            self.shift.copy_(y.detach().mean(0))
            self.is_set.fill_(True)
        return (y - self.shift) * self.scale if self.mode + 1 > 1 else y - self.shift


@pytest.mark.usefixtures("strict")
def test_flags_among_the_buffers() -> None:
    torch.manual_seed(0)
    reference = Initialised()
    module = ORTModule(copy.deepcopy(reference))
    for mode, scale in ((0, 1), (0, 1), (1, 1), (1, 3), (0, 3), (2, 2)):
        for net in (reference, module):
            net.mode.fill_(mode), net.scale.fill_(scale)
        x = torch.randn(3 + mode, 4)
        found, expected = module(x), reference(x)
        torch.testing.assert_close(found, expected, **CLOSE)
        compare(
            *(
                torch.autograd.grad(y.square().sum(), net.fc.weight)
                for net, y in ((module, found), (reference, expected))
            )
        )
        compare(dict(module.named_buffers()), dict(reference.named_buffers()))
    plans = {id(plan) for found in module._runner.plans.values() for plan in found.values()}
    assert len(plans) == 4  # not set, and three modes


def test_buffers_with_too_many_values() -> None:
    torch.manual_seed(0)
    reference = Initialised()
    module, x = ORTModule(copy.deepcopy(reference)), torch.randn(3, 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for mode in range(7):
            for net in (reference, module):
                net.mode.fill_(mode)
            torch.testing.assert_close(module(x), reference(x), **CLOSE)
    assert [warning.category for warning in caught] == [FallbackWarning]
    assert module._runner._fixed.flags == {"is_set"}
    assert not module.runs_on_onnxruntime(x)


@pytest.mark.usefixtures("strict")
def test_a_flag_that_is_changed() -> None:
    def counting(module: nn.Module, flag: Tensor, x: Tensor) -> Tensor:
        flag += 1
        return x * 2 if flag else x

    module, flag = ORTModule(Function(counting)), torch.zeros(1)
    with pytest.raises(ORTModuleFallbackException, match="in place"):
        module(flag, torch.ones(2, requires_grad=True))
    assert flag.item() == 0


def test_a_module_that_returns_its_argument() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    found = ORTModule(Function(lambda module, x: x))(x)
    compare(found, x)
    found.sum().backward()
    assert x.grad is not None
    assert x.grad.eq(1).all()

"""Modules that amplify rounding: what is compared in double precision, and that mistakes are found there, too."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from benchmarks.works import MobileNetV2
from torch import nn

from onward.torch import ORTModule
from onward.torch.ortmodule import comparison


class Mistake(nn.Module):
    """Nothing, but that exporters see another gradient."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor = self.factor if torch.compiler.is_compiling() else 1.0
        return x.detach() + factor * (x - x.detach())


class Wave(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(4 * x)


def deep(*middle: nn.Module, layers: int = 8) -> nn.Module:
    """What gives a difference on two or three times as large, again and again."""
    half = [part for _ in range(layers // 2) for part in (nn.Linear(8, 8), nn.BatchNorm1d(8), Wave())]
    return nn.Sequential(*half, *middle, *copy.deepcopy(half))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether what differs by more than usual was rounding, each time that double precision was asked."""
    answers: list[bool] = []
    answer = comparison._Suspect.is_rounding

    def noted(*args: Any, **options: Any) -> bool:
        answers.append(answer(*args, **options))
        return answers[-1]

    monkeypatch.setattr(comparison._Suspect, "is_rounding", noted)
    return answers


def test_rounding_that_is_amplified_is_no_mistake(asked: list[bool]) -> None:
    torch.manual_seed(0)
    module = ORTModule(deep())
    assert module.runs_on_onnxruntime(torch.randn(8, 8))
    assert asked
    assert all(asked)


@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_a_mistake_among_amplified_rounding_is_found(asked: list[bool], factor: float) -> None:
    torch.manual_seed(0)
    module = ORTModule(deep(Mistake(factor)))
    assert not module.runs_on_onnxruntime(torch.randn(8, 8))
    assert not all(asked)


@pytest.mark.slow
def test_mobilenet() -> None:
    """Fifty normalisations in a row: its gradients are about as far from double precision as torch's own are."""
    torch.manual_seed(0)
    reference = MobileNetV2().train()
    module, exact = ORTModule(copy.deepcopy(reference)), copy.deepcopy(reference).double()
    x = torch.randn(16, 3, 96, 96)
    assert module.runs_on_onnxruntime(x)
    gradients = []
    for net in (module, reference, exact):
        loss = net(x.to(next(net.parameters()).dtype)).square().mean()
        gradients.append([g.double() for g in torch.autograd.grad(loss, list(net.parameters()))])
    largest = max(float(true.norm()) for true in gradients[2])
    for ours, theirs, true in zip(*gradients, strict=True):
        rounding = max(float((theirs - true).norm()), 0.01 * float(true.norm()), 1e-5 * largest)
        assert float((ours - true).norm()) <= 3 * rounding

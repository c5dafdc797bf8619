"""At kinks, and where elements are equal, gradients are those that torch chose."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from onward.torch import ORTModule
from tests.ortmodule.models import Function
from tests.ortmodule.test_models import CLOSE

# torch.topk is not here: which of several equal elements it takes is not defined.
KINKS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp_min": lambda x: x.clamp(min=0),
    "clamp_max": lambda x: x.clamp_max(1.0),
    "clamp by tensors": lambda x: torch.clamp(x, torch.tensor([-1.0, 0, 0, 0, -1, -1]), x.flip(1)),
    "maximum": lambda x: torch.maximum(x, x.flip(1)),
    "max along an axis": lambda x: x.max(1).values,
    "min along an axis": lambda x: x.min(0, keepdim=True).values,
    "max after relu": lambda x: x.relu().max(-1)[0],
    "max": torch.max,
    "amax": lambda x: x.amax(1),
    "max_pool": lambda x: F.max_pool2d(x[None, None], 3, 1, 1),
    "std": lambda x: x.std(1),
    "std that keeps its axis": lambda x: x.std(1, keepdim=True),
    "std of several axes": lambda x: torch.std_mean(x.reshape(4, 3, 2), (1, 2), keepdim=True)[0],
    "norm": lambda x: torch.linalg.vector_norm(x, dim=1),
    "abs": torch.abs,
    "hardswish": lambda x: F.hardswish(3 * x),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, torch.zeros_like(x)),
    "prod": lambda x: x.prod(1),
}
TIES = torch.tensor([[0.0, 0, 1, 1, -1, -1], [2, 2, 2, 0, 0, -2], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, -1, -2]])


@pytest.fixture(scope="module")
def both() -> tuple[dict[str, Tensor], dict[str, Tensor], bool]:
    """The gradients of torch, and of one graph that was compared with torch where nothing is equal."""

    def forward(_: torch.nn.Module, x: Tensor) -> list[Tensor]:
        return [function(x) for function in KINKS.values()]

    module = ORTModule(Function(forward))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module(torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).requires_grad_())
    found = []
    for net in (module.module, module):
        x = TIES.clone().requires_grad_()
        results = net(x)
        weighted = [(y * torch.arange(1.0, y.numel() + 1).reshape(y.shape)).sum() for y in results]
        gradients = [torch.autograd.grad(y, x, retain_graph=True)[0] for y in weighted]
        found.append(dict(zip(KINKS, gradients, strict=True)))
    is_graph = type(results[0].grad_fn).__name__ == "_ORTModuleFunctionBackward"
    return found[0], found[1], is_graph


def test_they_run_on_onnxruntime(both: tuple[dict[str, Tensor], dict[str, Tensor], bool]) -> None:
    assert both[2]


@pytest.mark.parametrize("name", KINKS)
def test_kinks(name: str, both: tuple[dict[str, Tensor], dict[str, Tensor], bool]) -> None:
    torch.testing.assert_close(both[1][name], both[0][name], **CLOSE)


@pytest.mark.parametrize("dim", [0, 1])
def test_parts_of_an_axis_whose_size_varies(dim: int) -> None:
    def forward(_: torch.nn.Module, x: Tensor) -> list[Tensor]:
        first = x.shape[dim] // 2
        return [*x.chunk(3, dim=dim), *torch.split(x, [first, x.shape[dim] - first], dim=dim), x.sum()]

    module = ORTModule(Function(forward))
    for size in (7, 8, 9, 7):
        found = []
        for net in (module.module, module):
            x = torch.arange(size * size, dtype=torch.float32).reshape(size, size).requires_grad_()
            results = net(x)
            sum((index + 1) * y.square().sum() for index, y in enumerate(results)).backward()
            found.append([*results, x.grad])
        torch.testing.assert_close(found[1], found[0], **CLOSE)
        assert type(results[0].grad_fn).__name__ == "_ORTModuleFunctionBackward"


def test_operators_whose_arguments_follow_from_sizes() -> None:
    """torch writes no ignore_index that is computed: each size gets a graph of its own."""

    def forward(m: torch.nn.Module, x: Tensor, labels: Tensor) -> Tensor:
        scores = m.table(x).t()
        return F.cross_entropy(scores, labels, ignore_index=scores.shape[1])

    module = ORTModule(Function(forward, table=torch.nn.Embedding(5, 6)))
    for rows in (4, 3, 4):
        x, labels = torch.arange(rows), torch.arange(6) % (rows + 1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.testing.assert_close(module(x, labels), module.module(x, labels), **CLOSE)

"""Attention over nothing: a row that is masked from end to end is zeros, and so is its gradient."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import onward
from onward.testing import run_on_runtime
from onward.torch import ORTModule
from onward.torch.ortmodule import FallbackWarning


class Attention(nn.Module):
    """Two heads, by torch's own attention."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(8, 24), dropout

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = self.linear(x).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        p = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=p)


def data() -> tuple[Tensor, Tensor, Tensor]:
    """Rows, a causal mask, and one that leaves two rows nothing."""
    x = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(3, 1, 5, 5, dtype=torch.bool).tril()
    whole = mask.clone()
    whole[1, :, :2] = False
    return x, mask, whole


def passed(module: nn.Module, x: Tensor, mask: Tensor) -> list[Tensor]:
    torch.manual_seed(3)
    x = x.clone().requires_grad_()
    result = module(x, mask)
    parameters = [parameter for _, parameter in module.named_parameters()]
    return [result, *torch.autograd.grad(result.square().sum(), [x, *parameters])]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("numbers", [False, True])
def test_rows_that_see_nothing(dropout: float, numbers: bool) -> None:
    torch.manual_seed(0)
    module = Attention(dropout)
    ours = ORTModule(module)
    x, mask, whole = data()
    if numbers:
        mask, whole = (torch.where(seen, 0.0, -torch.inf) for seen in (mask, whole))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours(x, mask)  # compared with torch where every row sees something
        for given in (mask, whole):
            for found, wanted in zip(passed(ours, x, given), passed(module, x, given), strict=True):
                torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


class OfRank(nn.Module):
    """Attention of tensors with any number of axes."""

    def __init__(self, dropout: float, **options: bool) -> None:
        super().__init__()
        self.linear, self.dropout, self.options = nn.Linear(4, 4), dropout, options

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return F.scaled_dot_product_attention(self.linear(x), x, x, mask, self.dropout, **self.options)


@pytest.mark.parametrize("opset", [None, 14])  # the older one is traced
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("shape", [(5, 4), (2, 5, 4), (2, 2, 5, 4), (2, 1, 2, 5, 4)])
def test_of_any_rank(
    shape: tuple[int, ...], numbers: bool, dropout: float, opset: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if opset:
        monkeypatch.setenv("ORTMODULE_ONNX_OPSET_VERSION", str(opset))
    torch.manual_seed(0)
    module, x = OfRank(dropout), torch.randn(shape)
    mask = torch.ones(*shape[:-2], 5, 5, dtype=torch.bool).tril()
    whole = mask.clone()
    whole[..., 1, :] = False
    if numbers:
        mask, whole = (torch.where(seen, 0.0, -torch.inf) for seen in (mask, whole))
    ours = ORTModule(module)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        for given in (mask, whole):
            for found, wanted in zip(passed(ours, x, given), passed(module, x, given), strict=True):
                torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_of_three_axes_is_for_all_sizes() -> None:
    module = OfRank(0.0, is_causal=True)
    ours = ORTModule(module)
    for rows in (3, 4, 7):
        x = torch.randn(rows, rows + 1, 4)
        torch.testing.assert_close(ours(x), module(x), rtol=1e-4, atol=1e-5)
    assert {plan.exporter for plans in ours._runner.plans.values() for plan in plans.values()} == {"torch.export"}


def test_an_exported_model_has_zeros_too() -> None:
    torch.manual_seed(0)
    module = Attention().eval()
    x, mask, whole = data()
    model = onward.torch.export(module, (x, mask), exporter="dynamo", output_names=["y"])
    gradients = onward.gradient(model, wrt=["linear.weight"], of="y")
    for given in (mask, whole):
        y = module(x, given)
        dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
        (wanted,) = torch.autograd.grad(y, module.linear.weight, dy)
        names = [value.name for value in gradients.graph.input]
        feeds = dict(zip(names, (x.numpy(), given.numpy(), dy.numpy()), strict=True))
        found = run_on_runtime(gradients, feeds)
        np.testing.assert_allclose(found["y"], y.detach().numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found["linear.weight_grad"], wanted.numpy(), rtol=1e-4, atol=1e-5)

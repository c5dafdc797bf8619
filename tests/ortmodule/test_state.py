"""What a module keeps besides its parameters, and what changes of it: graphs follow."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn

from onward.torch import ORTModule
from onward.torch.ortmodule import FallbackWarning
from tests.ortmodule.models import Function
from tests.ortmodule.test_module import plans


class Warm(nn.Module):
    """It reads whole numbers of its own: how often it was called, a mask, places."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.offset = nn.Linear(4, 3), torch.tensor(2)
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("places", torch.tensor([0, 1, 2]))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = self.fc(x) * torch.clamp(self.calls / 3, max=1.0)
        return y * ~self.mask + y[:, self.places] * (self.places + 1) * (self.offset * 2)


def test_whole_numbers_of_the_module_may_change() -> None:
    torch.manual_seed(0)
    module = Warm()
    reference, net = copy.deepcopy(module), ORTModule(module)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        for number in range(6):
            x = torch.randn(2, 4, requires_grad=True)
            found, expected = net(x), reference(x)
            torch.testing.assert_close(found, expected)
            torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x) for y in (found, expected)))
            for each in (module, reference):
                if number > 2:
                    each.mask.logical_not_(), each.places.copy_(each.places.roll(1)), each.offset.add_(1)
    assert module.calls == 6


def test_tensors_in_lists() -> None:
    """Those of its own that torch does not know of are constants of graphs, as long as nobody writes to them."""
    torch.manual_seed(0)
    module = Function(lambda m, x: m.fc(x) * m.scales[0], fc=nn.Linear(4, 3))
    module.scales = [torch.ones(3)]
    reference, net = copy.deepcopy(module), ORTModule(module)
    x = torch.randn(2, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        for _ in range(2):
            torch.testing.assert_close(net(x), reference(x))
            module.scales[0].mul_(2), reference.scales[0].mul_(2)
    reference.scales = module.scales = [torch.ones(3, requires_grad=True)]
    with pytest.warns(FallbackWarning, match="in a list, a dictionary"):
        net(x).sum().backward()
    assert module.scales[0].grad is not None


def test_hooks_that_come_later() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    reference, net = copy.deepcopy(module), ORTModule(module)
    x = torch.randn(2, 4)
    torch.testing.assert_close(net(x), reference(x))
    handles = [each[1].register_forward_hook(lambda _, args, y: 2 * y) for each in (module, reference)]
    with pytest.warns(FallbackWarning, match="module '1' has hooks"):
        torch.testing.assert_close(net(x), reference(x))
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(net(x), reference(x))
    assert net.runs_on_onnxruntime(x)


def test_parameters_with_names_of_operations() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.t, self.exp = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.exp) @ x.t() / self.t.exp()

    module, x = Named(), torch.randn(3, 4)
    net = ORTModule(module)
    assert net.runs_on_onnxruntime(x)
    assert [plan.exporter for plan in plans(net)] == ["torch.export"]  # whose graphs are for all sizes
    found = [torch.autograd.grad(each(x).square().sum(), list(module.parameters())) for each in (net, module)]
    torch.testing.assert_close(*found)

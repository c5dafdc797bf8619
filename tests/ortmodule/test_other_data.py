"""Graphs are compared with torch for the data of the first call; what they compute for other data is torch's, too."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from onward.torch import ORTModule
from onward.torch.ortmodule import FallbackWarning
from tests.ortmodule.models import Function
from tests.ortmodule.test_models import CLOSE, compare


def _without_gradients(m: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return m.norm(x)


def _frozen() -> nn.Module:
    body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=0.3)).requires_grad_(requires_grad=False)
    return nn.Sequential(body, nn.Linear(4, 2))


# Nothing is trained in front of these, or in them.
NORMS: dict[str, Callable[[], nn.Module]] = {
    "without weights": lambda: nn.BatchNorm1d(4, affine=False),
    "frozen": _frozen,
    "without gradients": lambda: Function(_without_gradients, norm=nn.BatchNorm1d(4)),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_running_statistics_change_once_a_call(name: str, requires_grad: bool) -> None:
    """onnxruntime writes statistics where those of the module are, also while a graph is compared with torch."""
    torch.manual_seed(0)
    module = NORMS[name]()
    reference = copy.deepcopy(module)
    net = ORTModule(module)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        for rows in (3, 3, 5):
            x = torch.randn(rows, 4).requires_grad_(requires_grad)
            compare(net(x), reference(x))
            torch.testing.assert_close(dict(module.named_buffers()), dict(reference.named_buffers()), **CLOSE)

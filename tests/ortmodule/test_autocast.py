"""Half precision: the types are torch's, and the numbers within the accuracy of these types."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from onward.torch import ORTModule
from onward.torch.ortmodule import FallbackWarning
from tests.ortmodule.models import CASES, Function

# Eight bits: each rounding is off by up to 1/256, those of a network together by a few times as much.
NEAR = 0.04
# Normalisation takes differences of nearly equal gradients, which shows torch's roundings several times larger.
NEAR_GRADIENTS = 0.12
GRADIENT = "_ORTModuleFunctionBackward"


def near(found: Tensor, expected: Tensor, limit: float = NEAR, floor: float = 0.0) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    first, second = found.detach().double(), expected.detach().double()
    assert (first - second).norm() <= limit * max(float(second.norm()), floor)


def same(module: ORTModule, reference: nn.Module, *args: Any, seed: int = 0) -> list[Tensor]:
    """Run both; results, gradients and buffers are alike."""
    returned = []
    for net in (reference, module):
        net.zero_grad()
        torch.manual_seed(seed)
        leaves = pytree.tree_leaves(net(*args))
        returned.append([leaf for leaf in leaves if isinstance(leaf, Tensor)])
        ends = [leaf for leaf in returned[-1] if leaf.requires_grad]
        sum((leaf.float().square().mean() for leaf in ends), start=torch.zeros(())).backward()
    for got, wanted in zip(returned[1], returned[0], strict=True):
        near(got, wanted)
    gradients = [p.grad for p in reference.parameters() if p.grad is not None]
    floor = max((float(g.double().norm()) for g in gradients), default=0.0)
    for wanted, got in zip(reference.parameters(), module.parameters(), strict=True):
        assert (wanted.grad is None) == (got.grad is None)
        if wanted.grad is not None and got.grad is not None:
            near(got.grad, wanted.grad, NEAR_GRADIENTS, floor)
    for wanted, got in zip(reference.buffers(), module.buffers(), strict=True):
        near(got, wanted)
    return returned[1]


def pair(name: str) -> tuple[ORTModule, nn.Module, Any]:
    make, arguments = CASES[name]
    torch.manual_seed(0)
    reference = make()
    return ORTModule(copy.deepcopy(reference)), reference, arguments


SAMPLE = ("cnn, batch norm, dropout",)
# torch runs these itself, the first without autocast too: normal numbers of half precision are other ones.
LEFT_TO_TORCH = ("loss with label smoothing", "variational autoencoder")
REFUSED_BY_TORCH = ("rows set by a mask",)  # a product in bfloat16, rows in float32
CASES_OF_GRAPHS = [name for name in CASES if name not in (*LEFT_TO_TORCH, *REFUSED_BY_TORCH)]


@pytest.mark.parametrize(
    "name", [n if n in SAMPLE else pytest.param(n, marks=pytest.mark.slow) for n in CASES_OF_GRAPHS]
)
def test_autocast_on_and_off(name: str) -> None:
    """Each setting has graphs of its own, which are found again."""
    module, reference, arguments = pair(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        warnings.filterwarnings("ignore", "Mismatch dtype between input and weight")  # torch's, about RMSNorm
        for number, enabled in enumerate([True, False, True, False]):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                same(module, reference, *arguments(4 + number // 2), seed=number)
            count = len(module._runner.plans)
            assert count == min(number + 1, 2)
        module.eval(), reference.eval()
        args, returned = arguments(4), []
        for net in (module, reference):
            torch.manual_seed(0)
            with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
                returned.append(pytree.tree_leaves(net(*args)))
    for got, wanted in zip(*returned, strict=True):
        if isinstance(wanted, Tensor):
            near(got, wanted)


def test_without_autocast_it_is_single_precision() -> None:
    """What ran under autocast before leaves no trace."""
    module, reference, arguments = pair("mlp")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = module(*arguments(4))
    assert rounded.dtype is torch.bfloat16
    x = arguments(4)
    torch.testing.assert_close(module(*x), reference(*x), rtol=1e-6, atol=1e-7)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast("cpu", enabled=False):
        assert module(*x).dtype is torch.float32


def test_types_are_those_of_torch() -> None:
    """Products are in bfloat16, losses in float32, and double precision stays what it is."""

    def forward(m: nn.Module, x: Tensor, t: Tensor) -> dict[str, Any]:
        y = m.fc(x)
        loss = nn.functional.cross_entropy(y, t)
        return {"y": y, "loss": loss, "sum": x + 1, "softmax": y.softmax(-1), "best": y.argmax(-1), "type": y.dtype}

    torch.manual_seed(0)
    reference = Function(forward, fc=nn.Linear(4, 3))
    module = ORTModule(copy.deepcopy(reference))
    args = torch.randn(5, 4), torch.randint(3, (5,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, expected = module(*args), reference(*args)
    types = {name: value.dtype if isinstance(value, Tensor) else value for name, value in found.items()}
    assert types == {name: value.dtype if isinstance(value, Tensor) else value for name, value in expected.items()}
    assert types["y"] is types["type"] is torch.bfloat16
    assert types["loss"] is types["sum"] is torch.float32
    double, x = ORTModule(nn.Linear(4, 3).double()), torch.randn(5, 4).double()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert double(x).dtype is torch.float64
        torch.testing.assert_close(double(x), double.module(x), rtol=1e-12, atol=1e-12)


def test_autocast_inside_of_the_module() -> None:
    """A region of the module's own, by `with` or as a decorator; objects of autocast are as they were afterwards."""
    region = torch.autocast("cpu", dtype=torch.bfloat16)

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        @torch.autocast("cpu", dtype=torch.bfloat16)
        def first(self, x: Tensor) -> Tensor:
            return self.a(x)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            y = self.first(x)
            with region:
                z = self.b(y)
                with torch.autocast("cpu", enabled=False):
                    w = self.c(x)
            return y, z, w

    torch.manual_seed(0)
    reference = Own()
    module = ORTModule(copy.deepcopy(reference))
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        found = same(module, reference, torch.randn(3, 4))
    assert [tensor.dtype for tensor in found] == [torch.bfloat16, torch.bfloat16, torch.float32]
    assert type(found[2].grad_fn).__name__ == GRADIENT
    assert not torch.is_autocast_enabled("cpu")
    with region:
        assert reference.a(torch.ones(1, 4)).dtype is torch.bfloat16


def test_modules_of_half_precision() -> None:
    """Parameters, buffers, arguments and gradients in bfloat16."""
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).bfloat16()
    module = ORTModule(copy.deepcopy(reference))
    x = torch.randn(16, 4, dtype=torch.bfloat16)
    given = [x.clone().requires_grad_() for _ in range(2)]
    for net, own in zip((reference, module), given, strict=True):
        net(own).float().square().mean().backward()
    near(given[1].grad, given[0].grad)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        same(module, reference, x)
    assert {p.dtype for p in module.parameters()} == {torch.bfloat16}


def test_modules_one_after_the_other() -> None:
    """What one returns in bfloat16 the next one takes."""
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    first, second = ORTModule(copy.deepcopy(reference[:2])), ORTModule(copy.deepcopy(reference[2:]))
    x = torch.randn(5, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        between = first(x)
        found, expected = second(between), reference(x)
    assert between.dtype is torch.bfloat16
    near(found, expected)
    found.float().square().mean().backward()
    expected.float().square().mean().backward()
    gradients = [p.grad for net in (first, second) for p in net.parameters()]
    for got, parameter in zip(gradients, reference.parameters(), strict=True):
        near(got, parameter.grad)


def test_what_half_precision_changes_is_left_to_torch() -> None:
    """A module may look whether autocast is on: then single precision is no more exact, but something else."""

    def forward(m: nn.Module, x: Tensor) -> Tensor:
        return m.fc(x) * (2 if torch.is_autocast_enabled("cpu") else 1)

    torch.manual_seed(0)
    reference = Function(forward, fc=nn.Linear(4, 4))
    module = ORTModule(copy.deepcopy(reference))
    x = torch.randn(3, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.warns(FallbackWarning, match="more than rounding"):
            found = module(x)
        torch.testing.assert_close(found, reference(x), rtol=0, atol=0)
    assert type(module(x).grad_fn).__name__ == GRADIENT


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scaled_gradients(dtype: torch.dtype) -> None:
    """`GradScaler` as in torch: scaled, unscaled, clipped; a step with infinite gradients is left out."""
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    module = ORTModule(copy.deepcopy(reference))
    x, y = torch.randn(16, 4), torch.randn(16, 2)
    scales = []
    for net in (reference, module):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
        for number in range(10):
            with torch.autocast("cpu", dtype=dtype):
                loss = nn.functional.mse_loss(net(x), y) * (float("inf") if number == 6 else 1.0)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        scales.append(scaler.get_scale())
    assert scales[0] == scales[1] == 2.0**10  # grown once, and halved by the infinite step
    for got, wanted in zip(module.parameters(), reference.parameters(), strict=True):
        assert wanted.isfinite().all()
        near(got, wanted)

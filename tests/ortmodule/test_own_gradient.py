"""`torch.autograd.Function` inside of a module: its own backward pass, in the graph."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  as everybody calls it
from torch import Tensor, nn

from onward.torch import ORTModule
from onward.torch.ortmodule import FallbackWarning
from onward.torch.ortmodule.own_gradient import own_gradients
from tests.ortmodule.models import Function
from tests.ortmodule.test_models import CLOSE, compare, step


class Straight(torch.autograd.Function):
    """Rounded, as if nothing had been."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return -dy * ctx.scale, None


class Limited(torch.autograd.Function):
    """In the newer style: what the backward pass needs is written down afterwards."""

    @staticmethod
    def forward(x: Tensor, limit: float) -> Tensor:
        return x * 1

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.limit = inputs[1]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return dy.clamp(-ctx.limit, ctx.limit), None


class Quantized(torch.autograd.Function):
    """Steps of a size that is learned; its gradient is a sum over everything."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: Tensor, most: int) -> Tensor:
        ctx.save_for_backward(x, size)
        ctx.most = most
        return (x / size).round().clamp(-most, most) * size

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        x, size = ctx.saved_tensors
        steps = x / size
        outside = (steps.abs() > ctx.most).to(x.dtype)
        slope = outside * ctx.most * steps.sign() + (1 - outside) * (steps.round() - steps)
        return dy * (1 - outside), (dy * slope).sum().reshape(1), None


class Signs(torch.autograd.Function):
    """Assigns by a mask in its backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        dx = dy.clone()
        dx[x.abs() > 1] = 0
        return dx


class Largest(torch.autograd.Function):
    """Two results, of which one has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        value, index = x.max(-1)
        ctx.mark_non_differentiable(index)
        ctx.index, ctx.count = index, x.shape[-1]
        return value, index

    @staticmethod
    def backward(ctx: Any, dy: Tensor, _: Any) -> Tensor:
        return F.one_hot(ctx.index, ctx.count) * dy.unsqueeze(-1) * 3


class Doubled(torch.autograd.Function):
    """Changes its argument in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy * 7


class Detaching(torch.autograd.Function):
    """Gradients through something that was detached, summed to the shape of the smaller argument, and a function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        y: Tensor = Straight.apply(x.detach() + bias.detach())  # type: ignore[no-untyped-call]
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        return Reversed.apply(dy, 0.5), 5 * dy  # type: ignore[no-untyped-call]


class Product(torch.autograd.Function):
    """Two results, both with gradients that only the other argument is part of."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, y)
        return x + y, x * y

    @staticmethod
    def backward(ctx: Any, dsum: Tensor, dproduct: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, y = ctx.saved_tensors
        dx = dproduct * y if ctx.needs_input_grad[0] else None
        return dx, dsum + dproduct * x if ctx.needs_input_grad[1] else None


def _call(kind: Any, *options: Any) -> Callable[[Any, Tensor], Any]:
    return lambda m, x: kind.apply(m.fc(x) * 3, *options)


def _in_place(m: Any, x: Tensor) -> Tensor:
    y = m.fc(x)
    z: Tensor = Doubled.apply(y)  # type: ignore[no-untyped-call]
    return z + y.square()


FUNCTIONS: dict[str, Callable[[Any, Tensor], Any]] = {
    "straight through": lambda m, x: Straight.apply(m.fc(x) * 3) * m.fc.bias,  # type: ignore[no-untyped-call]
    "reversed": _call(Reversed, 0.5),
    "limited": _call(Limited, 0.3),
    "steps of a learned size": lambda m, x: Quantized.apply(m.fc(x), m.fc.bias[:1].abs() + 0.1, 3),  # type: ignore[no-untyped-call]
    "signs": lambda m, x: F.linear(x, Signs.apply(m.fc.weight * 3)),  # type: ignore[no-untyped-call]
    "two results, one without gradient": _call(Largest),
    "two results": lambda m, x: Product.apply(m.fc(x), m.fc.bias),  # type: ignore[no-untyped-call]
    "one of two results": lambda m, x: Product.apply(m.fc(x), m.fc.bias)[1],  # type: ignore[no-untyped-call]
    "in place": _in_place,
    "detached, and functions inside": lambda m, x: Detaching.apply(m.fc(x), m.fc.bias),  # type: ignore[no-untyped-call]
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_its_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE")
    torch.manual_seed(0)
    reference = Function(FUNCTIONS[name], fc=nn.Linear(4, 6))
    module = ORTModule(copy.deepcopy(reference))
    for number in range(4):
        args = (torch.randn(3 + number % 2, 4, requires_grad=True),)
        compare(step(module, args, number), step(reference, args, number))
        gradients = ([p.grad for p in net.parameters()] for net in (module, reference))
        torch.testing.assert_close(*gradients, **CLOSE)
    with torch.no_grad():
        compare(module(*args), reference(*args))
    domains = {node.domain for plan in module._runner.latest.values() for node in plan.graphs.forward.graph.node}
    assert domains <= {"", "onward.torch"}
    operators = {node.op_type for plan in module._runner.latest.values() for node in plan.graphs.forward.graph.node}
    assert not operators & {"Own", "Seed", "Gradient"}


class Deciding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy * 2 if dy.norm() < 100 else dy / dy.norm()


@pytest.mark.parametrize("opset", [None, 14])  # the older one is traced
def test_a_backward_pass_that_cannot_be_followed(opset: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the forward pass consists of has the same gradient, but for large ones: torch runs the module."""
    if opset:
        monkeypatch.setenv("ORTMODULE_ONNX_OPSET_VERSION", str(opset))
    reference = Function(_call(Deciding), fc=nn.Linear(4, 6))
    module, x = ORTModule(reference), torch.randn(3, 4, requires_grad=True)
    with pytest.warns(FallbackWarning, match="backward pass of Deciding"):
        module(x)
    for scale in (1.0, 1000.0):
        found, wanted = (torch.autograd.grad(scale * net(x).sum(), x) for net in (module, reference))
        torch.testing.assert_close(found, wanted, **CLOSE)
    with torch.no_grad():
        assert module.runs_on_onnxruntime(x)


class Forward(torch.autograd.Function):
    """For what has no gradients: there is no backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, in_place: bool) -> Tensor:
        assert ctx.needs_input_grad == (False, False, False)
        if in_place:
            ctx.mark_dirty(x)
            return x.mul_(scale)
        return (x * scale).round()


def _without_gradients(m: Any, x: Tensor, in_place: bool) -> Tensor:
    y = x * 3
    z = Forward.apply(y, m.fc.weight.detach()[0], in_place)  # type: ignore[no-untyped-call]
    return m.fc(y) + m.fc(z)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("in_place", "opset"), [(False, None), (True, None), (False, 14)])  # the older one is traced
def test_a_function_of_which_no_argument_requires_gradients(
    in_place: bool, opset: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE")
    if opset:
        monkeypatch.setenv("ORTMODULE_ONNX_OPSET_VERSION", str(opset))
    torch.manual_seed(0)
    reference = Function(lambda m, x: _without_gradients(m, x, in_place), fc=nn.Linear(4, 6))
    module = ORTModule(copy.deepcopy(reference))
    for number in range(3):
        args = (torch.randn(3 + number % 2, 4),)
        compare(step(module, args, number), step(reference, args, number))
        gradients = ([p.grad for p in net.parameters()] for net in (module, reference))
        torch.testing.assert_close(*gradients, **CLOSE)


class Asking(torch.autograd.Function):
    """Computes the gradients that it is asked for, and no others."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        _, y = ctx.saved_tensors
        assert not ctx.needs_input_grad[1], "nobody asks for the gradient of the second"
        return dy * y * 2, None


def test_functions_are_told_which_gradients_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE")
    reference = Function(lambda m, x: Asking.apply(m.fc(x), x[:, :1]), fc=nn.Linear(4, 6))  # type: ignore[no-untyped-call]
    module, args = ORTModule(copy.deepcopy(reference)), (torch.randn(3, 4),)
    compare(step(module, args, 0), step(reference, args, 0))
    torch.testing.assert_close(module.fc.weight.grad, reference.fc.weight.grad, **CLOSE)


def test_functions_are_as_they_were() -> None:
    before = vars(Straight)["forward"]
    with own_gradients() as called:
        assert vars(Straight)["forward"] is not before
        found: list[Tensor] = []
        other = threading.Thread(target=lambda: found.append(Straight.apply(torch.tensor(1.4))))  # type: ignore[no-untyped-call]
        other.start(), other.join()
    assert found == [torch.tensor(1.0)]
    assert called == []
    assert vars(Straight)["forward"] is before

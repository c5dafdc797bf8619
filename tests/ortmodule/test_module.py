"""What ORTModule is to its users: a module of torch like any other."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from onward.torch import ORTModule
from onward.torch.ortmodule import FallbackWarning
from onward.torch.ortmodule.plan import Plan
from tests.ortmodule.test_models import CLOSE


class Net(nn.Module):
    """Two layers, an unused one, a buffer and a method."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.idle = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(2, 2)
        self.register_buffer("scale", torch.full((3,), 2.0))
        self.factor = 1.0

    def forward(self, x: Tensor, bias: Tensor | None = None, *, negative: bool = False) -> Tensor:
        y = self.fc2(torch.relu(self.fc1(x))) * self.scale * self.factor
        if bias is not None:
            y = y + bias
        return -y if negative else y

    def predict(self, x: Tensor) -> Tensor:
        return self(x).softmax(-1)


@pytest.fixture(scope="module")
def shared() -> tuple[Net, ORTModule]:
    torch.manual_seed(0)
    net = Net()
    return copy.deepcopy(net), ORTModule(net)


@pytest.fixture
def pair(shared: tuple[Net, ORTModule]) -> Iterator[tuple[Net, ORTModule]]:
    """torch's and onnxruntime's, equal at the beginning of each test; graphs are kept between tests."""
    reference, module = shared
    torch.manual_seed(0)
    fresh = Net().state_dict()
    for net in (reference, module):
        net.load_state_dict(fresh)
        net.zero_grad()
        net.train()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield reference, module


def gradients(module: nn.Module) -> dict[str, Tensor | None]:
    return {name: None if p.grad is None else p.grad.clone() for name, p in module.named_parameters()}


def require_same_gradients(first: nn.Module, second: nn.Module) -> None:
    one, two = gradients(first), gradients(second)
    assert one.keys() == two.keys()
    for name, wanted in two.items():
        assert (one[name] is None) == (wanted is None), name
        if wanted is not None:
            torch.testing.assert_close(one[name], wanted, **CLOSE)


def plans(module: ORTModule) -> list[Plan]:
    found = {id(plan): plan for by_sizes in module._runner.plans.values() for plan in by_sizes.values()}
    return [plan for plan in found.values() if isinstance(plan, Plan)]


def test_it_has_the_signature_and_the_names_of_the_module(pair: tuple[Net, ORTModule]) -> None:
    reference, module = pair
    assert inspect.signature(module.forward) == inspect.signature(reference.forward)
    assert [name for name, _ in module.named_parameters()] == [name for name, _ in reference.named_parameters()]
    assert [name for name, _ in module.named_buffers()] == ["scale"]
    assert [name for name, _ in module.named_children()] == ["fc1", "fc2", "idle"]
    assert [name for name, _ in module.named_modules()] == [name for name, _ in reference.named_modules()]
    assert module.state_dict().keys() == reference.state_dict().keys()
    assert next(module.parameters()) is next(module.module.parameters())
    assert module.get_parameter("fc1.weight") is module.module.fc1.weight
    assert module.get_submodule("fc2") is module.fc2


def test_nothing_is_exported_before_the_first_call() -> None:
    module = ORTModule(Net())
    assert not module._runner.plans
    assert len(list(module.parameters())) == 6


def test_forward_and_backward(pair: tuple[Net, ORTModule]) -> None:
    x = torch.randn(5, 4)
    for net in pair:
        net(x).square().mean().backward()
    require_same_gradients(pair[1], pair[0])
    assert pair[1].idle.weight.grad is None
    assert type(pair[1](x).grad_fn).__name__ == "_ORTModuleFunctionBackward"


def test_one_graph_serves_all_sizes_and_styles_of_a_call(pair: tuple[Net, ORTModule]) -> None:
    reference, module = pair
    module(torch.randn(5, 4))
    before = len(plans(module))
    for rows in (2, 9, 33):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(module(x=x), reference(x), **CLOSE)
        torch.testing.assert_close(module(x), reference(x), **CLOSE)
    assert len(plans(module)) == before


def test_images_of_other_sizes_make_a_graph_for_all() -> None:
    """The first is for its size, which is faster."""
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    module, twin = ORTModule(net), copy.deepcopy(net)
    for count, shape in zip((1, 1, 2, 2, 2), ((2, 8, 8), (3, 8, 8), (2, 10, 9), (3, 7, 11), (2, 8, 8)), strict=True):
        x = torch.randn(shape[0], 2, *shape[1:])
        for side in (net, twin):
            side.zero_grad()
        y, expected = module(x), twin(x)
        torch.testing.assert_close(y, expected, **CLOSE)
        y.square().sum().backward()
        expected.square().sum().backward()
        require_same_gradients(net, twin)
        assert len(plans(module)) == count


def test_optimizers_change_what_the_graphs_see(pair: tuple[Net, ORTModule]) -> None:
    optimizers = [torch.optim.Adam(net.parameters(), lr=0.05) for net in pair]
    x = torch.randn(5, 4)
    for _ in range(10):
        losses = []
        for net, optimizer in zip(pair, optimizers, strict=True):
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    with torch.no_grad():
        pair[1].scale.mul_(3)  # a buffer
        torch.testing.assert_close(pair[1](x), pair[1].module(x), **CLOSE)


def test_gradients_accumulate_and_passes_may_overlap(pair: tuple[Net, ORTModule]) -> None:
    x = [torch.randn(3, 4), torch.randn(6, 4), torch.randn(2, 4)]
    for net in pair:
        first, second, third = (net(rows).square().mean() for rows in x)
        second.backward()
        third.backward(retain_graph=True)
        first.backward()
        third.backward()
    require_same_gradients(pair[1], pair[0])


def test_a_graph_is_freed_by_its_backward_pass(pair: tuple[Net, ORTModule]) -> None:
    loss = pair[1](torch.randn(3, 4)).square().mean()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_what_changes_in_place_between_the_passes_is_noticed(pair: tuple[Net, ORTModule]) -> None:
    loss = pair[1](torch.randn(3, 4)).square().mean()
    with torch.no_grad():
        pair[1].fc2.weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_gradients_of_inputs(pair: tuple[Net, ORTModule]) -> None:
    x = torch.randn(5, 4)
    found = []
    for net in pair:
        given = x.clone().requires_grad_()
        net(given * 1.0).square().mean().backward()  # no leaf
        found.append(given.grad)
    torch.testing.assert_close(found[1], found[0], **CLOSE)


def test_freezing_and_thawing_is_noticed(pair: tuple[Net, ORTModule]) -> None:
    x = torch.randn(5, 4)
    for frozen in (True, False):
        for net in pair:
            net.zero_grad()
            net.fc1.requires_grad_(not frozen)
            net(x).square().mean().backward()
        require_same_gradients(pair[1], pair[0])
        assert (pair[1].fc1.weight.grad is None) == frozen


def test_evaluation_and_no_grad(pair: tuple[Net, ORTModule]) -> None:
    reference, module = pair
    x = torch.randn(5, 4)
    module.eval(), reference.eval()
    assert not module.training
    assert not module.fc1.training
    with torch.no_grad():
        found = module(x)
        torch.testing.assert_close(found, reference(x), **CLOSE)
        assert not found.requires_grad
    with torch.inference_mode():
        torch.testing.assert_close(module(x), reference(x), **CLOSE)
    assert module.train() is module
    assert module.module.training


@pytest.mark.filterwarnings("error::onward.torch.ortmodule.FallbackWarning")
def test_a_first_call_in_inference_mode() -> None:
    """Where Lightning tests and predicts; training goes on after it."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    reference, module = copy.deepcopy(net), ORTModule(net)
    for training in (False, True):
        reference.train(training), module.train(training)
        with torch.inference_mode():
            x = torch.randn(5, 4)
            found = module(x)
            torch.testing.assert_close(found, reference(x), **CLOSE)
            assert found.is_inference()
        x = torch.randn(5, 4)
        for each in (reference, module):
            each(x).square().sum().backward()
    require_same_gradients(module, reference)
    torch.testing.assert_close(module.state_dict(), reference.state_dict(), **CLOSE)


def test_a_module_that_was_made_in_inference_mode() -> None:
    with torch.inference_mode():
        net = nn.Linear(4, 3)
        module, x = ORTModule(net), torch.randn(5, 4)
        with pytest.warns(FallbackWarning, match="made in torch.inference_mode, and do not know when they are changed"):
            torch.testing.assert_close(module(x), net(x))


def test_arguments_of_all_kinds(pair: tuple[Net, ORTModule]) -> None:
    reference, module = pair
    x, bias = torch.randn(5, 4), torch.randn(3)
    for args, kwargs in [((x, bias), {}), ((x,), {"bias": bias}), ((x, None), {}), ((x,), {"negative": True})]:
        torch.testing.assert_close(module(*args, **kwargs), reference(*args, **kwargs), **CLOSE)
    with pytest.raises(TypeError, match="unexpected keyword"):
        module(x, other=1)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        module(torch.randn(5, 7))


def test_attributes(pair: tuple[Net, ORTModule]) -> None:
    reference, module = pair
    x = torch.randn(5, 4)
    module.factor = reference.factor = 3.0
    assert module.module.factor == 3.0
    torch.testing.assert_close(module(x), reference(x), **CLOSE)
    module.factor = reference.factor = 1.0
    torch.testing.assert_close(module(x), reference(x), **CLOSE)
    torch.testing.assert_close(module.predict(x), reference.predict(x), **CLOSE)
    module.note = "new"
    assert module.module.note == "new"
    del module.note
    with pytest.raises(AttributeError, match="note"):
        _ = module.note


def test_operators_of_containers() -> None:
    torch.manual_seed(0)
    net, x = ORTModule(nn.Sequential(nn.Linear(4, 3), nn.Tanh())), torch.randn(2, 4)
    assert len(net) == 2
    assert [type(layer) for layer in net] == [nn.Linear, nn.Tanh]
    net[0] = nn.Linear(4, 5)
    torch.testing.assert_close(net(x), net[1](net[0](x)))
    for copied in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), ORTModule(net)):
        assert type(copied).__name__ == "ORTModule"
        assert isinstance(copied, ORTModule)
        torch.testing.assert_close(copied[:1](x), net[0](x))
    plain = ORTModule(nn.Linear(4, 3))
    assert type(plain) is ORTModule
    assert not hasattr(plain, "__len__")


def test_a_layer_that_is_replaced_is_used(pair: tuple[Net, ORTModule]) -> None:
    reference, module = copy.deepcopy(pair[0]), pair[1]
    x = torch.randn(5, 4)
    module(x)
    before = module.module.fc2
    module.module.fc2 = nn.Linear(6, 3)
    reference.fc2 = copy.deepcopy(module.module.fc2)
    torch.testing.assert_close(module(x), reference(x), **CLOSE)
    module.module.fc2 = before


def test_hooks(pair: tuple[Net, ORTModule]) -> None:
    _, module = pair
    seen = []
    handles = [
        module.register_forward_hook(lambda *_: seen.append("forward")),
        module.register_full_backward_hook(lambda *_: seen.append("backward")),
        module.fc1.weight.register_hook(lambda g: g * 0),
    ]
    module(torch.randn(5, 4, requires_grad=True)).sum().backward()
    assert seen == ["forward", "backward"]
    assert not module.fc1.weight.grad.any()
    for handle in handles:
        handle.remove()


def test_hooks_inside_are_left_to_torch(pair: tuple[Net, ORTModule]) -> None:
    module = ORTModule(copy.deepcopy(pair[0]))
    seen = []
    handle = module.module.fc1.register_forward_hook(lambda *args: seen.append(args[2].shape))
    with pytest.warns(FallbackWarning, match="hooks"):
        module(torch.randn(5, 4)).sum().backward()
    module(torch.randn(5, 4))  # no second warning
    assert seen == [(5, 6), (5, 6)]
    handle.remove()


def test_pickle_and_deepcopy(pair: tuple[Net, ORTModule]) -> None:
    _, module = pair
    module(torch.randn(5, 4))
    for other in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
        assert isinstance(other, ORTModule)
        assert not other._runner.plans
        assert other.fc1.weight is not module.fc1.weight
        torch.testing.assert_close(other.state_dict(), module.state_dict(), rtol=0, atol=0)
        assert other.get_parameter("fc1.weight") is other.module.fc1.weight


def test_inside_of_another_module(pair: tuple[Net, ORTModule]) -> None:
    reference, module = pair
    parents = [nn.Sequential(nn.Linear(4, 4), net, nn.Linear(3, 1)) for net in (reference, module)]
    parents[1].load_state_dict(parents[0].state_dict())
    assert parents[1].state_dict().keys() == parents[0].state_dict().keys()
    assert [n for n, _ in parents[1].named_parameters()] == [n for n, _ in parents[0].named_parameters()]
    x = torch.randn(5, 4)
    for parent in parents:
        parent(x).square().mean().backward()
    require_same_gradients(parents[1], parents[0])
    assert not parents[1].eval()[1].training
    assert parents[1].double()[1].fc1.weight.dtype == torch.float64
    parents[1].float()


def test_two_heads_on_one_backbone(pair: tuple[Net, ORTModule]) -> None:
    reference, module = pair
    x = torch.randn(5, 4)
    for net in pair:
        first, second = net(x), net(x * 2)
        (first.square().mean() + (first * second).sum()).backward()
    require_same_gradients(module, reference)


def test_exporting_leaves_random_numbers_as_they_are() -> None:
    torch.manual_seed(7)
    state = torch.get_rng_state()
    module = ORTModule(nn.Linear(3, 3))
    torch.set_rng_state(state)
    module(torch.ones(2, 3))
    assert torch.equal(torch.get_rng_state(), state)


def test_of_an_ort_module_is_one(pair: tuple[Net, ORTModule]) -> None:
    assert ORTModule(pair[1]).module is pair[1].module


@pytest.mark.parametrize("wrong", [None, 3, lambda x: x])
def test_what_is_no_module_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        ORTModule(wrong)

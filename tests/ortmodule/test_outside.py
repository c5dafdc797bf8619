"""What a module computes with besides its tensors is changed after the first call: results follow, or torch runs it."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from onward.torch import ORTModule
from onward.torch.ortmodule import FallbackWarning


@dataclasses.dataclass
class Config:
    scale: float = 2.0


class Base(nn.Module):
    factor = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.table, self.shifts, self._config, self.dtype = (
            np.ones(3, np.float32),
            [torch.ones(3)],
            Config(),
            np.float32(2),
        )


class Table(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * torch.from_numpy(self.table)


class Shifted(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.shifts[0]


class Configured(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self._config.scale


class OfClass(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.factor


class OfFile(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * WEIGHT


class OfOtherModule(Base):
    def forward(self, x: Tensor) -> Tensor:
        return OTHER(self.layer(x))


class OfNumpy(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * float(self.dtype)


WEIGHT = 2.0
OTHER = nn.Linear(3, 3)
PATCH = pytest.MonkeyPatch()


def other_weight() -> None:
    nn.init.constant_(OTHER.weight, 0.5)


CHANGES: dict[str, tuple[type[Base], Callable[[Base], object]]] = {
    "element of an array": (Table, lambda module: module.table.__setitem__(0, 5)),
    "data of a tensor in a list": (Shifted, lambda module: module.shifts[0].data.mul_(3)),
    "private configuration": (Configured, lambda module: setattr(module._config, "scale", 3.0)),
    "attribute of the class": (OfClass, lambda module: PATCH.setattr(Base, "factor", 3.0)),
    "variable of the file": (OfFile, lambda module: PATCH.setitem(globals(), "WEIGHT", 3.0)),
    "module of the file": (OfOtherModule, lambda module: other_weight()),
    "number of numpy": (OfNumpy, lambda module: setattr(module, "dtype", np.float32(3))),
}


@pytest.mark.filterwarnings("ignore::onward.torch.ortmodule.FallbackWarning")
@pytest.mark.parametrize(("kind", "change"), CHANGES.values(), ids=CHANGES)
def test_results_follow(kind: type[Base], change: Callable[[Base], object]) -> None:
    torch.manual_seed(0)
    module, x = kind(), torch.randn(4, 3)
    model = ORTModule(module)
    before = model(x)
    torch.testing.assert_close(before, module(x))
    try:
        change(module)
        after, wanted = model(x), module(x)
        assert not torch.allclose(before, wanted)
        torch.testing.assert_close(after, wanted)
    finally:
        PATCH.undo()


@pytest.mark.parametrize("kind", [Table, Shifted, Configured, OfClass, OfFile, OfNumpy])
def test_onnxruntime_runs_these(kind: type[Base]) -> None:
    assert ORTModule(kind()).runs_on_onnxruntime(torch.zeros(2, 3))


class Asked(Base):
    """A module with an attribute that gives another number each time."""

    def __init__(self, source: object, ask: Callable[[object], float]) -> None:
        super().__init__()
        self.source, self.ask = source, ask

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.ask(self.source)


OWN = np.random.default_rng(1)


class OfGenerator(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * OWN.random()


SOURCES: dict[str, tuple[Callable[[], object], Callable[[object], float]]] = {
    "generator of numpy": (lambda: np.random.default_rng(0), lambda source: source.random()),
    "old generator of numpy": (lambda: np.random.RandomState(0), lambda source: source.rand()),
    "generator of Python": (lambda: random.Random(0), lambda source: source.random()),
    "generator of torch": (
        lambda: torch.Generator().manual_seed(0),
        lambda source: torch.rand(1, generator=source).item(),
    ),
    "count": (itertools.count, next),
    "cycle": (lambda: itertools.cycle([1.0, 2.0, 3.0]), next),
    "iterator": (lambda: iter([1.0, 2.0, 3.0]), next),
}


@pytest.mark.parametrize("name", SOURCES)
def test_what_is_another_number_each_time_is_left_to_torch(name: str) -> None:
    make, ask = SOURCES[name]
    torch.manual_seed(0)
    module = Asked(make(), ask)
    model, x = ORTModule(copy.deepcopy(module)), torch.randn(4, 3)
    with pytest.warns(FallbackWarning):
        first = model(x)
    for found in (first, model(x), model(x)):
        torch.testing.assert_close(found, module(x))


def test_a_generator_of_the_file_gives_the_numbers_of_torch() -> None:
    module, x, before = OfGenerator(), torch.randn(4, 3), copy.deepcopy(OWN)
    model = ORTModule(module)
    with pytest.warns(FallbackWarning, match="a generator of random numbers"):
        found = [model(x), model(x)]
    OWN.bit_generator.state = before.bit_generator.state
    torch.testing.assert_close(found, [module(x), module(x)])


class OfTensor(Base):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.slope = torch.tensor(2.0), torch.tensor([2.0])

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale.item() + (2 * self.slope).tolist()[0]


def test_python_reads_tensors_that_are_attributes() -> None:
    module, x = OfTensor(), torch.randn(4, 3)
    model = ORTModule(module)
    for number in (1.0, 2.0, 3.0):
        module.scale = torch.tensor(number)
        module.slope.fill_(number)
        torch.testing.assert_close(model(x), module(x))
        assert list(vars(module))[-2:] == ["scale", "slope"]


class Returning(Base):
    """A module that returns what a function makes of its result, besides it."""

    def __init__(self, of: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.of = of

    def forward(self, x: Tensor) -> object:
        y = self.layer(x)
        return {"y": y, "also": self.of(y)}


@pytest.mark.parametrize(
    "of",
    [lambda y: y.mean().item(), lambda y: y.argmax(1).tolist(), lambda y: (y > 0).nonzero().shape[0]],
    ids=["item", "tolist", "count"],
)
def test_numbers_made_of_data_are_those_of_each_call(of: Callable[[Tensor], object]) -> None:
    torch.manual_seed(0)
    module = Returning(of)
    model = ORTModule(module)
    with pytest.warns(FallbackWarning):
        model(torch.randn(4, 3))
    for rows in (4, 4, 5):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(model(x), module(x))


@pytest.mark.parametrize("of", [lambda y: y.shape[0], lambda y: [2 * y.shape[0] / 3], lambda y: y.shape])
def test_sizes_among_the_results_are_those_of_each_call(of: Callable[[Tensor], object]) -> None:
    module = Returning(of)
    model = ORTModule(module)
    for rows in (4, 5, 4, 7):
        x = torch.randn(rows, 3)
        assert model.runs_on_onnxruntime(x)
        torch.testing.assert_close(model(x), module(x))


def limited(y: Tensor) -> int:
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient.clamp(-50, 50))
    return 0


def limited_node(y: Tensor) -> int:
    if y.grad_fn is not None:
        y.grad_fn.register_hook(lambda gradients, _: tuple(g if g is None else g.clamp(-50, 50) for g in gradients))
    return 0


@pytest.mark.parametrize("of", [limited, limited_node])
def test_hooks_of_a_call_run(of: Callable[[Tensor], object]) -> None:
    torch.manual_seed(0)
    module, x = Returning(of), torch.randn(4, 3)
    model = ORTModule(module)
    for scale in (0.01, 1000.0):
        gradients = []
        for net in (model, module):
            net.zero_grad()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FallbackWarning)
                (scale * net(x)["y"]).sum().backward()
            gradients.append([parameter.grad for parameter in module.parameters()])
        torch.testing.assert_close(*gradients)


class Doubled(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)

    def __call__(self, x: Tensor) -> Tensor:
        return 2 * super().__call__(x)


def test_a_call_of_its_own() -> None:
    module, x = Doubled(), torch.randn(4, 3)
    with pytest.warns(FallbackWarning, match="__call__ of its own"):
        torch.testing.assert_close(ORTModule(module)(x), module(x))
    net = nn.Sequential(module)  # of a part, it is exported with all else
    model = ORTModule(net)
    torch.testing.assert_close(model(x), net(x))


class WithDefault(Base):
    def forward(self, x: Tensor, scale: Tensor = torch.ones(3)) -> Tensor:  # noqa: B008  that is what it is about
        return self.layer(x) * scale


def test_default_arguments() -> None:
    module, x = WithDefault(), torch.randn(4, 3)
    model = ORTModule(module)
    model(x)
    WithDefault.forward.__defaults__[0].fill_(3.0)
    torch.testing.assert_close(model(x), module(x))


def _doubled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(function)
    def doubled(*args: Any) -> Tensor:
        return OFFSET + function(*args)

    return doubled


OFFSET = 1.0


RECTIFIED = _doubled(torch.Tensor.relu)  # what it wraps is no function of Python


class Decorated(Base):
    @_doubled
    def forward(self, x: Tensor) -> Tensor:
        return RECTIFIED(self.layer(x))


def test_decorators(monkeypatch: pytest.MonkeyPatch) -> None:
    """They read variables, too, and may be around anything."""
    module, x = Decorated(), torch.randn(2, 3)
    net = ORTModule(copy.deepcopy(module))
    torch.testing.assert_close(net(x), module(x))
    monkeypatch.setattr(f"{__name__}.OFFSET", 2.0)
    torch.testing.assert_close(net(x), module(x))
    assert net.runs_on_onnxruntime(x)


class Repeated(Base):
    """As many layers as it is told to have, in different ways of saying so."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.register_buffer("count", torch.tensor(2))

    def forward(self, x: Tensor, count: Any) -> Tensor:
        if self.way == "buffer":
            count = self.count
        elif self.way == "element":
            count = count[0]
        elif self.way == "index":
            return self.layer(x) * [1.0, 2.0, 3.0, 4.0, 5.0][count]
        for _ in range(count if self.way != "size" else x.shape[0] // 2):
            x = self.layer(x)
        return x


@pytest.mark.filterwarnings("ignore::onward.torch.ortmodule.FallbackWarning")
@pytest.mark.parametrize("opset", [None, 14])  # the older one is traced, where counting is not noticed
@pytest.mark.parametrize("way", ["number", "tensor", "buffer", "element", "index", "size"])
def test_how_often_is_said_in_each_call(way: str, opset: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if opset:
        monkeypatch.setenv("ORTMODULE_ONNX_OPSET_VERSION", str(opset))
    torch.manual_seed(0)
    module = Repeated(way)
    model = ORTModule(module)
    for count in (1, 2, 3, 1, 4, 0):
        x = torch.randn(count + 1 if way == "size" else 2, 3)
        module.count.fill_(count)
        given = {"tensor": torch.tensor(count), "element": torch.tensor([count, 1])}.get(way, count)
        if way == "size":
            given = None
        torch.testing.assert_close(model(x, given), module(x, given))
    if way == "size":
        assert model.runs_on_onnxruntime(x, None)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients(kind: type[nn.Module]) -> None:
    module, ids = kind(6, 3, sparse=True), torch.tensor([[1, 2], [2, 5]])
    with pytest.warns(FallbackWarning, match="sparse"):
        ORTModule(module)(ids).sum().backward()
    assert module.weight.grad.is_sparse


def test_sizes_that_the_first_call_finds() -> None:
    module, x = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2)), torch.randn(3, 5)
    model = ORTModule(module)
    first = model(x)  # torch's, without a warning
    assert model.runs_on_onnxruntime(x)
    torch.testing.assert_close(model(x), first)

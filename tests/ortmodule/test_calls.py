"""Arguments and results of all kinds."""

from __future__ import annotations

import copy
import enum
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from onward.torch import ORTModule
from tests.ortmodule.models import Function, Pair
from tests.ortmodule.test_models import compare
from tests.ortmodule.test_module import plans


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


class Flexible(nn.Module):
    """Everything that a signature can have."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(
        self, x: Tensor, y: Any = None, *args: Tensor, scale: float = 1.0, kind: str = "sum", **kwargs: Any
    ) -> Any:
        total = self.fc(x) * scale
        for other in (y, *args):
            if other is not None:
                total = total + other
        for value in kwargs.values():
            total = total - value
        return total if kind == "sum" else (total, kind, None)


X, Y, Z = (torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)) for seed in range(3))
STYLES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "positional": ((X, Y), {}),
    "by name": ((), {"y": Y, "x": X}),
    "None": ((X, None), {}),
    "*args": ((X, Y, Z, X), {}),
    "**kwargs": ((X,), {"b": Z, "a": Y}),
    "all": ((X, Y, Z), {"scale": 2.0, "kind": "all", "c": Y}),
}


@pytest.fixture(scope="module")
def flexible() -> tuple[Flexible, ORTModule]:
    reference = Flexible()
    return reference, ORTModule(copy.deepcopy(reference))


@pytest.mark.parametrize("style", ["by name", "all", *(pytest.param(s, marks=pytest.mark.slow) for s in STYLES)])
def test_styles_of_calls(style: str, flexible: tuple[Flexible, ORTModule]) -> None:
    args, kwargs = STYLES[style]
    reference, module = flexible
    for _ in range(2):
        compare(module(*args, **kwargs), reference(*args, **kwargs))


def test_the_order_of_keywords_means_nothing(flexible: tuple[Flexible, ORTModule]) -> None:
    reference, module = flexible
    compare(module(X, a=Y, b=Z), reference(X, a=Y, b=Z))
    count = len(plans(module))
    compare(module(X, b=Z, a=Y), reference(X, b=Z, a=Y))
    assert len(plans(module)) == count


def test_numbers_that_vary_become_data(flexible: tuple[Flexible, ORTModule]) -> None:
    module = ORTModule(copy.deepcopy(flexible[0]))
    for scale in (1.5, 0.25, 3.0, -7.0):
        compare(module(X, scale=scale), flexible[0](X, scale=scale))
    assert len(plans(module)) == 2


def test_the_same_tensor_twice_and_then_two() -> None:
    reference = Function(lambda m, a, b: m.fc(a) * b, fc=nn.Linear(4, 4))
    module = ORTModule(copy.deepcopy(reference))
    for args in ((X, X), (X, Y), (Y, X)):
        compare(module(*args), reference(*args))
    assert len(plans(module)) == 1


# Name -> a function of a layer and one argument, and the argument.
NESTED: dict[str, tuple[Callable[[Any, Any], Any], Any]] = {
    "list": (lambda m, a: m.fc(a[0]) + a[1], [X, Y, None]),
    "nested": (lambda m, a: m.fc(a["p"][0]) * a["q"]["r"], {"p": [X, None], "q": {"r": Y, "s": "text"}}),
    "named tuple": (lambda m, a: Pair(m.fc(a.first), a.second), Pair(X, Y)),
    "nested results": (lambda m, a: {"x": (m.fc(a), [a, {"z": m.fc(a) * 2}]), "n": None, "one": 1}, X),
    "ordered": (lambda m, a: OrderedDict([("z", m.fc(a)), ("a", a > 0)]), X),
    "same result twice": (lambda m, a: [y := m.fc(a), y, a], X),
    "integers": (lambda m, a: (m.fc(a["x"]), a["i"] + 1, a["b"] & (a["i"] > 2), a["u"]), {
        "x": X, "i": torch.arange(4), "b": torch.tensor([True, False, True, True]), "u": torch.ones(2).byte()
    }),
    "not contiguous": (lambda m, a: m.fc(a.transpose(0, 1)), X.clone().t()),
    "a scalar": (lambda m, a: m.fc(a[0]).sum() * a[1], [X, torch.tensor(3.0)]),
    "one row": (lambda m, a: m.fc(a), X[:1]),
    "no rows": (lambda m, a: m.fc(a), X[:0]),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", ["nested", "nested results", *(pytest.param(n, marks=pytest.mark.slow) for n in NESTED)]
)
def test_structures(name: str) -> None:
    function, argument = NESTED[name]
    reference = Function(function, fc=nn.Linear(4, 4))
    module = ORTModule(copy.deepcopy(reference))
    for _ in range(2):
        compare(module(argument), reference(argument))


def test_sizes_that_change_the_course_get_graphs_of_their_own() -> None:
    reference = Function(lambda m, x: m.fc(x) if x.shape[0] % 2 else m.fc(x).relu() * x.shape[0], fc=nn.Linear(4, 4))
    module = ORTModule(copy.deepcopy(reference))
    for rows in (3, 5, 4, 6, 7, 8):
        compare(module(torch.ones(rows, 4)), reference(torch.ones(rows, 4)))
    assert len(plans(module)) == 2


class Way(enum.Enum):
    SUM = 1
    MEAN = 2


def test_members_of_enumerations() -> None:
    module = Function(lambda m, x, way: (m.fc(x).sum() if way is Way.SUM else m.fc(x).mean(), way), fc=nn.Linear(4, 4))
    net = ORTModule(module)
    for way in (Way.SUM, Way.MEAN, Way.SUM):
        compare(net(X, way), module(X, way))
    assert len(plans(net)) == 2

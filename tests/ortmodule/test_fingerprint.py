"""What a module is made of, and that each change of it is noticed by the quick look, too."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import types
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import nn

from onward.torch.ortmodule.fingerprint import Fingerprint


class Config:
    def __init__(self) -> None:
        self.width, self.deep, self.inner = 3, [1], types.SimpleNamespace(rate=0.5)


@dataclasses.dataclass(slots=True)
class Slotted:
    rate: float = 0.5


class Settings:
    width = 3


class Slope:
    def __init__(self, slope: float) -> None:
        self.slope = slope

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.slope


class Level(enum.Enum):
    LOW, HIGH = 1, 2


FACTOR = 2.0
TABLE = {"a": torch.ones(2)}


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR + TABLE["a"]


def scaled_by(factor: float) -> tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[float], None]]:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    def change(value: float) -> None:
        nonlocal factor
        factor = value

    return function, change


class Sample(nn.Module):
    temperature = 1.0
    settings = Config()

    def __init__(self) -> None:
        super().__init__()
        self.array, self.arrays, self.slotted = np.ones((2, 2)), {"a": [np.arange(3)]}, Slotted()
        self.number, self.of_type, self.queue = np.float32(0.5), torch.float32, collections.deque([1, 2])
        self.kind, self.slope, self.level = Settings, Slope(0.5), Level.LOW
        self.method, self.partial = Slope(0.5).__call__, functools.partial(torch.add, Slope(0.5))
        self._slope, self._function, self._space = Slope(0.5), torch.relu, types.SimpleNamespace(rate=0.5)
        self.closure, self.change = scaled_by(1.0)
        self.table_of_many = {"a": list(range(200))}
        self.first, self.second = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        self.register_buffer("offset", torch.zeros(2))
        self.scale, self.kinds, self.table, self.names = 1.5, [1, 2], {"a": 1}, {"x"}
        self.config = Config()
        self.constant = torch.ones(2)
        self._private, self._options = 1, {"a": 1}
        self.nested, self.long = {"a": [1, {"b": 2}]}, list(range(100))
        self.masks, self.hidden = [torch.ones(2)], [nn.Linear(2, 2), self.first]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scaled(x)


def set_data(module: Sample, data: torch.Tensor) -> None:
    module.first.weight.data = data


PATCH = pytest.MonkeyPatch()
CHANGES: dict[str, Callable[[Sample], object]] = {
    "mode": lambda module: module.eval(),
    "hook": lambda module: module.second[1].register_forward_hook(print),
    "mode of a part": lambda module: module.second[1].eval(),
    "number": lambda module: setattr(module, "scale", 2.5),
    "private number": lambda module: setattr(module, "_private", 2),
    "new attribute": lambda module: setattr(module, "other", 1),
    "attribute gone": lambda module: delattr(module, "scale"),
    "element of a list": lambda module: module.kinds.__setitem__(1, 3),
    "longer list": lambda module: module.kinds.append(3),
    "other list": lambda module: setattr(module, "kinds", [1, 3]),
    "value of a dict": lambda module: module.table.update(a=2),
    "key of a dict": lambda module: module.table.update(b=module.table.pop("a")),
    "element of a list in a dict": lambda module: module.nested["a"].__setitem__(0, 2),
    "value of a dict in a list in a dict": lambda module: module.nested["a"][1].update(b=3),
    "element of a long list": lambda module: module.long.__setitem__(80, 0),
    "type of a number": lambda module: module.kinds.__setitem__(0, 1.0),
    "value of a private dict": lambda module: module._options.update(a=2),
    "list in the configuration": lambda module: module.config.deep.append(2),
    "object in the configuration": lambda module: setattr(module.config.inner, "rate", 0.1),
    "tensor in a list": lambda module: module.masks[0].zero_(),
    "element of an array": lambda module: module.array.__setitem__((0, 1), 2),
    "type of an array": lambda module: setattr(module, "array", np.ones((2, 2), np.float32)),
    "element of an array in a list in a dict": lambda module: module.arrays["a"][0].__setitem__(1, 7),
    "number of numpy": lambda module: setattr(module, "number", np.float32(0.75)),
    "type of torch": lambda module: setattr(module, "of_type", torch.float64),
    "element of a queue": lambda module: module.queue.append(3),
    "attribute in a slot": lambda module: setattr(module.slotted, "rate", 0.1),
    "attribute of a class that is an attribute": lambda module: PATCH.setattr(Settings, "width", 4),
    "attribute of the class": lambda module: PATCH.setattr(Sample, "temperature", 2.0),
    "another attribute of the class": lambda module: PATCH.setattr(Sample, "other", 2.0, raising=False),
    "method of the class": lambda module: PATCH.setattr(Sample, "forward", scaled),
    "configuration of the class": lambda module: PATCH.setattr(Sample.settings, "width", 4),
    "attribute of a callable object": lambda module: setattr(module.slope, "slope", 0.1),
    "attribute of the object of a method": lambda module: setattr(module.method.__self__, "slope", 0.1),
    "attribute of an argument of a partial": lambda module: setattr(module.partial.args[0], "slope", 0.1),
    "member of an enumeration": lambda module: setattr(module, "level", Level.HIGH),
    "private object": lambda module: setattr(module._slope, "slope", 0.1),
    "private function": lambda module: setattr(module, "_function", torch.tanh),
    "private namespace": lambda module: setattr(module._space, "rate", 0.1),
    "variable around a function": lambda module: module.change(2.0),
    "variable of the file": lambda module: PATCH.setitem(globals(), "FACTOR", 3.0),
    "tensor of the file": lambda module: PATCH.setitem(TABLE, "a", torch.zeros(2)),
    "function of the file": lambda module: PATCH.setitem(globals(), "scaled", torch.relu),
    "data of a tensor in a list": lambda module: module.masks[0].data.zero_(),
    "memory of a tensor in a list": lambda module: setattr(module.masks[0], "data", torch.zeros(2)),
    "element of a long list in a dict": lambda module: module.table_of_many["a"].__setitem__(150, 0),
    "another tensor in a list": lambda module: module.masks.__setitem__(0, torch.ones(2)),
    "module in a list": lambda module: nn.init.zeros_(module.hidden[0].weight),
    "mode of a module in a list": lambda module: module.hidden[0].eval(),
    "set": lambda module: (module.names.remove("x"), module.names.add("y")),
    "configuration": lambda module: setattr(module.config, "width", 4),
    "attributes of the configuration": lambda module: setattr(module.config, "__dict__", {"width": 3}),
    "parameter requires no gradient": lambda module: module.first.weight.requires_grad_(False),
    "parameters shared": lambda module: setattr(module.second[0], "bias", module.second[1].bias),
    "parameter gone": lambda module: setattr(module.first, "bias", None),
    "shape of a parameter": lambda module: set_data(module, torch.zeros(3, 2)),
    "type of a parameter": lambda module: module.first.double(),
    "buffer gone": lambda module: setattr(module, "offset", None),
    "shape of a tensor": lambda module: setattr(module, "constant", torch.ones(3)),
    "part": lambda module: setattr(module, "first", nn.Identity()),
    "part of a part": lambda module: module.second.append(nn.ReLU()),
    "the same part twice": lambda module: setattr(module.second, "0", module.first),
}


@pytest.fixture(autouse=True)
def undone() -> Iterator[None]:
    yield
    PATCH.undo()


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes_are_noticed(change: Callable[[Sample], object]) -> None:
    module = Sample()
    before = Fingerprint(module)
    assert before.is_current()
    change(module)
    assert not before.is_current()
    assert Fingerprint(module).key != before.key


def test_functions_are_told_apart_by_more_than_their_address() -> None:
    module, keys = nn.Identity(), set()
    for number in range(5):
        module.function = lambda x, number=number: x * number
        keys.add(Fingerprint(module).key)
    assert len(keys) == 5


def test_empty_cells_and_hidden_modules() -> None:
    def around() -> Callable[[], object]:
        gone = 1

        def function() -> object:
            return gone  # noqa: F821

        del gone
        return function

    module = nn.Identity()
    module.function = around()
    object.__setattr__(module, "_teacher", nn.Linear(2, 2))
    before = Fingerprint(module)
    assert before.is_current()
    assert before.is_trained_aside


def test_functions_that_call_each_other_many_deep() -> None:
    names: dict[str, object] = {"__name__": "deep", "NUMBER": 1}
    for depth in range(2000):
        exec(f"def f{depth}(x): return f{depth + 1}(x)", names)
    exec("def f2000(x): return x * NUMBER", names)
    module = nn.Identity()
    module.function = names["f0"]
    before = Fingerprint(module)
    assert before.is_current()
    names["NUMBER"] = 2
    assert not before.is_current()
    assert Fingerprint(module).key != before.key


def test_other_values_of_tensors_are_no_change() -> None:
    module = Sample()
    before = Fingerprint(module)
    torch.optim.SGD(module.parameters(), lr=0.1).step()
    with torch.no_grad():
        module.first.weight.add_(1)
    set_data(module, torch.full((2, 2), 3.0))
    module.offset.copy_(torch.ones(2))
    assert before.is_current()
    assert Fingerprint(module).key == before.key


def test_equal_parts_are_no_change_of_the_key() -> None:
    module = Sample()
    before = Fingerprint(module)
    module.kinds, module.scale = [1, 2], float("1.5")
    module.first.weight = nn.Parameter(torch.zeros(2, 2))
    assert not before.is_current()  # it does not know
    assert Fingerprint(module).key == before.key

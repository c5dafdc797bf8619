"""What a module is made of, and that each change of it is noticed by the quick look, too."""

from __future__ import annotations

import types
from collections.abc import Callable

import pytest
import torch
from torch import nn

from onward.torch.ortmodule.fingerprint import Fingerprint


class Config:
    def __init__(self) -> None:
        self.width, self.deep, self.inner = 3, [1], types.SimpleNamespace(rate=0.5)


class Sample(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        self.register_buffer("offset", torch.zeros(2))
        self.scale, self.kinds, self.table, self.names = 1.5, [1, 2], {"a": 1}, {"x"}
        self.config = Config()
        self.constant = torch.ones(2)
        self._private, self._options = 1, {"a": 1}
        self.nested, self.long = {"a": [1, {"b": 2}]}, list(range(100))
        self.masks, self.hidden = [torch.ones(2)], [nn.Linear(2, 2), self.first]


def set_data(module: Sample, data: torch.Tensor) -> None:
    module.first.weight.data = data


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


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes_are_noticed(change: Callable[[Sample], object]) -> None:
    module = Sample()
    before = Fingerprint(module)
    assert before.is_current()
    change(module)
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

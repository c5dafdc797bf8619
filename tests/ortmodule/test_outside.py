"""What a module computes with besides its tensors is changed after the first call: results follow, or torch runs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from onward.torch import ORTModule


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


@pytest.mark.filterwarnings("ignore::onward.torch.ortmodule._fallback.FallbackWarning")
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

"""Everything that changes while training, and lives outside the graphs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onward.errors import OnwardError
from onward.rate import checked_rate
from onward.runtime.access import Access
from onward.runtime.device import HOST, Device
from onward.runtime.tensors import FlatTensors, Layout

DEFAULT_LEARNING_RATE = 1e-3

Property = int | float | str


@dataclass(frozen=True)
class TensorType:
    """Type of a tensor whose values are not known; a shape of None is not known either."""

    dtype: np.dtype
    shape: tuple[int, ...] | None = None


@dataclass
class OptimizerState:
    """What an optimizer remembers between steps.

    Attributes:
        step: the number of updates so far.
        learning_rate: that of the next update.
        initial_learning_rate: what schedules start from.
        slots: by kind ("mu"), a tensor for every parameter.
        scales: what slots are multiplied with to get the quantities of the textbook; see `onward.optim.Slot`.
        schedule: what a learning rate schedule has to remember, as plain values.
        unnamed: whether the slots come from a program that numbers them instead ("momentum0"), and holds quantities of
            the textbook; the optimizer that takes the state over knows their names and scales.
    """

    step: int = 0
    learning_rate: float = DEFAULT_LEARNING_RATE
    initial_learning_rate: float = DEFAULT_LEARNING_RATE
    slots: dict[str, FlatTensors] = field(default_factory=dict)
    scales: dict[str, float] = field(default_factory=dict)
    schedule: dict[str, Any] | None = None
    unnamed: bool = False

    def __post_init__(self) -> None:
        self.learning_rate = checked_rate(self.learning_rate, "the learning rate of the checkpoint")
        self.initial_learning_rate = checked_rate(
            self.initial_learning_rate, "the initial learning rate of the checkpoint"
        )
        if self.step < 0:
            raise OnwardError(f"the number of updates in the checkpoint must not be negative, but it is {self.step}")


@dataclass
class RandomState:
    """Where the random numbers of Dropout and the like come from.

    Attributes:
        seed: any integer of 64 bits.
        passes: how often a training graph that draws has run; each pass draws other numbers.
    """

    seed: int = 0
    passes: int = 0

    def seed_of(self, rank: int) -> int:
        """What one of several processes draws from, each something else; the first one draws what one alone would."""
        if rank == 0:
            return self.seed
        digest = hashlib.blake2b(f"{self.seed} {rank}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 2  # graphs tell all seeds of 62 bits apart


class State:
    """Parameters, running statistics, optimizer state and properties of one training run.

    A *nominal* state knows the names and types of its parameters but not their values; it becomes a full one when all
    of them are given at once (as in federated learning, where the server sends them).

    Several modules and threads may share one. Whoever reads or changes it from outside of `runtime` holds `access`;
    modules and optimizers do so by themselves.
    """

    def __init__(
        self,
        trainable: Mapping[str, np.ndarray],
        frozen: Mapping[str, np.ndarray],
        *,
        properties: Mapping[str, Property] | None = None,
        optimizer: OptimizerState | None = None,
        random: RandomState | None = None,
        attachments: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        twice = sorted(set(trainable) & set(frozen))
        if twice:
            raise OnwardError(f"{', '.join(twice)}: a parameter is either trainable or frozen, not both")
        self.trainable = _tensors(trainable)
        self.frozen = _tensors(frozen)
        self.declared: tuple[dict[str, TensorType], dict[str, TensorType]] | None = None
        self.properties: dict[str, Property] = dict(properties or {})
        # Arrays that are saved with it, and that no graph knows.
        self.attachments: dict[str, np.ndarray] = dict(attachments or {})
        self.optimizer = optimizer
        self.random = RandomState() if random is None else random
        # Those of the module that trained last: every module has its own.
        self.gradients: FlatTensors | None = None
        self.access = Access()
        # Sessions are opened over the buffers of the state, and frozen parameters are constants of theirs: whoever
        # replaces a buffer or changes a constant makes them stale.
        self.version = 0
        # Those of them that sessions hold as constants, so that writing through a view would change nothing.
        self.constants: set[str] = set()

    @classmethod
    def without_values(
        cls,
        trainable: Mapping[str, TensorType],
        frozen: Mapping[str, TensorType],
        *,
        properties: Mapping[str, Property] | None = None,
    ) -> State:
        """A nominal state."""
        state = cls({}, {}, properties=properties)
        state.declared = (dict(trainable), dict(frozen))
        return state

    @property
    def nominal(self) -> bool:
        return self.declared is not None

    def require_values(self) -> None:
        if self.nominal:
            raise OnwardError("The state is nominal: it has no values. Please load the model parameters first.")

    @property
    def trainable_names(self) -> list[str]:
        return list(self.trainable if self.declared is None else self.declared[0])

    @property
    def frozen_names(self) -> list[str]:
        return list(self.frozen if self.declared is None else self.declared[1])

    def type_of(self, name: str) -> TensorType:
        """What is known about a parameter besides its values."""
        if self.declared is not None:
            return self.declared[0].get(name) or self.declared[1][name]
        shape, dtype = (self.trainable if name in self.trainable else self.frozen).layout[name]
        return TensorType(dtype, shape)

    def tensor(self, name: str) -> np.ndarray:
        """A live view of a parameter (on other devices than the host: a copy)."""
        if name in self.trainable:
            return self.trainable[name]
        view = self.frozen[name]
        if name in self.constants:
            view = view.view()
            view.flags.writeable = False
        return view

    def assign(self, name: str, array: np.ndarray) -> None:
        """Copy new contents into a parameter, which keeps its shape and type."""
        tensors = self.trainable if name in self.trainable else self.frozen
        shape, dtype = tensors.layout[name]
        if array.shape != shape:
            raise OnwardError(f"Parameter data shape mismatch. Expected: {shape}, Got: {array.shape} ({name!r})")
        if array.dtype != dtype:
            raise OnwardError(f"Parameter data type mismatch. Expected: {dtype}, Got: {array.dtype} ({name!r})")
        tensors.assign(name, array)
        if name in self.constants:
            self.version += 1

    def adopt(self, other: State) -> None:
        """Become what another state of the same parameters is, in place."""
        for mine, others, kind in (
            (self.trainable, other.trainable, "trainable parameter"),
            (self.frozen, other.frozen, "parameter that is not trained"),
        ):
            _check_same(mine.layout, others.layout, kind)
        for name in (*self.trainable, *self.frozen):
            array = other.tensor(name)
            # What sessions hold as a constant is assigned only where it differs: they would be opened again.
            if name not in self.constants or not np.array_equal(self.tensor(name), array):
                self.assign(name, array)
        self.optimizer, self.random = other.optimizer, other.random
        self.properties, self.attachments = dict(other.properties), dict(other.attachments)
        if self.optimizer is not None:
            slots = self.optimizer.slots
            self.optimizer.slots = {key: FlatTensors.holding(x, self.trainable.device) for key, x in slots.items()}

    def complete(self, arrays: Mapping[str, np.ndarray], device: Device = HOST) -> None:
        """Give a nominal state its values."""
        trainable, frozen = self.trainable_names, self.frozen_names
        self.trainable = FlatTensors.holding({name: arrays[name] for name in trainable}, device)
        self.frozen = FlatTensors.holding({name: arrays[name] for name in frozen}, device)
        self.declared = None
        self.version += 1

    def move(self, device: Device) -> None:
        """Hold all tensors on a device."""
        if self.trainable.device == device:
            return
        self.trainable = FlatTensors.holding(self.trainable, device)
        self.frozen = FlatTensors.holding(self.frozen, device)
        self.gradients = None
        self.version += 1
        if self.optimizer is not None:
            slots = self.optimizer.slots
            self.optimizer.slots = {name: FlatTensors.holding(slot, device) for name, slot in slots.items()}


def _check_same(mine: Layout, others: Layout, kind: str) -> None:
    for name in mine:
        if name not in others:
            raise OnwardError(f"the checkpoint does not have the {kind} {name!r}, which the model has")
        (shape, dtype), (given, kept) = mine[name], others[name]
        if (shape, dtype) != (given, kept):
            raise OnwardError(
                f"{name!r} is {kept} {list(given)} in the checkpoint, but {dtype} {list(shape)} in the model"
            )
    for name in others:
        if name not in mine:
            raise OnwardError(f"the checkpoint has the {kind} {name!r}, which the model does not have")


def _tensors(arrays: Mapping[str, np.ndarray]) -> FlatTensors:
    if isinstance(arrays, FlatTensors):
        return arrays
    # Texts never change: they are constants of the graphs and no part of the state.
    numbers = {name: array for name, array in arrays.items() if array.dtype.kind not in "OSUT"}
    return FlatTensors.holding(numbers)

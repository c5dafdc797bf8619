"""Everything that changes while training, and lives outside the graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from onward.errors import OnwardError
from onward.runtime.tensors import FlatTensors

DEFAULT_LEARNING_RATE = 1e-3

Property = int | float | str


@dataclass
class OptimizerState:
    """What an optimizer remembers between steps: slots by kind ("mu"), each with a tensor for every parameter."""

    step: int = 0
    learning_rate: float = DEFAULT_LEARNING_RATE
    initial_learning_rate: float = DEFAULT_LEARNING_RATE
    slots: dict[str, FlatTensors] = field(default_factory=dict)


class State:
    """Parameters, running statistics, optimizer state and properties of one training run.

    A *nominal* state knows the names and types of its parameters but not their values; it becomes a full one when all
    of them are given at once (as in federated learning, where the server sends them).
    """

    def __init__(
        self,
        trainable: Mapping[str, np.ndarray],
        frozen: Mapping[str, np.ndarray],
        *,
        properties: Mapping[str, Property] | None = None,
        optimizer: OptimizerState | None = None,
        nominal: bool = False,
    ) -> None:
        self.trainable = FlatTensors.holding(trainable)
        self.frozen = FlatTensors.holding(frozen)
        self.properties: dict[str, Property] = dict(properties or {})
        self.optimizer = optimizer
        self.gradients: FlatTensors | None = None
        self.nominal = nominal
        # Frozen parameters are constants of the sessions: whoever changes one makes the sessions stale.
        self.frozen_version = 0

    def tensor(self, name: str) -> np.ndarray:
        """A live view of a parameter."""
        return self.trainable[name] if name in self.trainable else self.frozen[name]

    def assign(self, name: str, array: np.ndarray) -> None:
        """Copy new contents into a parameter, which keeps its shape and type."""
        current = self.tensor(name)
        if array.shape != current.shape:
            raise OnwardError(
                f"Parameter data shape mismatch. Expected: {current.shape}, Got: {array.shape} ({name!r})"
            )
        if array.dtype != current.dtype:
            raise OnwardError(f"Parameter data type mismatch. Expected: {current.dtype}, Got: {array.dtype} ({name!r})")
        current[...] = array
        if name in self.frozen:
            self.frozen_version += 1

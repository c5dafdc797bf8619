"""`CheckpointState`: parameters and properties of a training run, loaded from and saved to a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from onward.errors import OnwardError
from onward.runtime import checkpoint, odtc
from onward.runtime.state import Property, State


class Parameter:
    """One parameter of a state."""

    def __init__(self, name: str, state: State) -> None:
        self._name, self._state = name, state

    @property
    def name(self) -> str:
        return self._name

    @property
    def requires_grad(self) -> bool:
        """Whether it is trained."""
        return self._name in self._state.trainable

    @property
    def data(self) -> np.ndarray:
        """The values: a live view, so that writing into it changes the model.

        The view of a frozen parameter that a module holds as a constant is read-only; assign to `data` to change it.
        On another device than the CPU this is a copy.
        """
        return self._state.tensor(self._name)

    @data.setter
    def data(self, value: np.ndarray) -> None:
        if not isinstance(value, np.ndarray):
            raise OnwardError(f"parameter {self._name!r} takes a numpy array, not {type(value).__name__}")
        with self._state.access.exclusive():
            self._state.assign(self._name, value)

    @property
    def grad(self) -> np.ndarray | None:
        """The gradient: zeros until the first training step; None if it is frozen or there is no module yet.

        Of several modules on one state: that of the one that trained last.
        """
        gradients = self._state.gradients
        return gradients[self._name] if gradients is not None and self._name in gradients else None

    def __repr__(self) -> str:
        return f"Parameter(name={self._name}, requires_grad={self.requires_grad})"


class Parameters:
    """All parameters of a state, by name; iterating yields (name, parameter), sorted by name."""

    def __init__(self, state: State) -> None:
        self._state = state

    def __getitem__(self, name: str) -> Parameter:
        self._check(name)
        if self._state.nominal:
            raise OnwardError(f"{name!r} has no values: the state is nominal. Please load the parameter states first.")
        return Parameter(name, self._state)

    def __setitem__(self, name: str, value: np.ndarray) -> None:
        self._check(name)
        if self._state.nominal:
            raise OnwardError(
                f"{name!r} cannot be set alone: the state is nominal. Please load all the parameter states first, with "
                "Module.copy_buffer_to_parameters(..., trainable_only=False)."
            )
        self[name].data = value

    def __contains__(self, name: object) -> bool:
        return name in self._state.trainable_names or name in self._state.frozen_names

    def __iter__(self) -> Iterator[tuple[str, Parameter]]:
        names = sorted([*self._state.trainable_names, *self._state.frozen_names])
        # Looked up before the first is given out, so that a nominal state complains at once.
        return iter([(name, self[name]) for name in names])

    def __len__(self) -> int:
        return len(self._state.trainable_names) + len(self._state.frozen_names)

    def __repr__(self) -> str:
        if self._state.nominal:
            return f"Parameters({len(self)} of a nominal state)"
        return f"Parameters({[parameter for _, parameter in self]})"

    def _check(self, name: str) -> None:
        if name not in self:
            raise KeyError(f"Parameter {name} not found.")


class Properties:
    """Named values of a state that are saved with it; iterating yields (name, value), sorted by name.

    Values are int, float or str. (The original rounds float to float32; here it stays as it is.)
    """

    def __init__(self, state: State) -> None:
        self._state = state

    def __getitem__(self, name: str) -> Property:
        if name not in self:
            raise KeyError(f"Property {name} not found.")
        return self._state.properties[name]

    def __setitem__(self, name: str, value: Property) -> None:
        if not isinstance(name, str):
            raise TypeError(f"the name of a property must be a str, not {type(name).__name__}")
        self._state.properties[name] = _plain(value)

    def __contains__(self, name: object) -> bool:
        return name in self._state.properties

    def __iter__(self) -> Iterator[tuple[str, Property]]:
        return iter(sorted(self._state.properties.items()))

    def __len__(self) -> int:
        return len(self._state.properties)

    def __repr__(self) -> str:
        return f"Properties({dict(iter(self))})"


class CheckpointState:
    """Everything that a training run has to remember.

    Several modules may share one, also in several threads. What is read or written through the arrays of its parameters
    is the business of the caller.
    """

    def __init__(self, state: State) -> None:
        if not isinstance(state, State):
            raise TypeError(f"Invalid argument for CheckpointState received {type(state)}")
        self._state = state

    @classmethod
    def load_checkpoint(cls, checkpoint_uri: str | os.PathLike[str]) -> CheckpointState:
        """Read a checkpoint, of onward or of onnxruntime-training 1.16 to 1.19."""
        return cls(checkpoint.load(checkpoint_uri))

    @classmethod
    def save_checkpoint(
        cls,
        state: CheckpointState,
        checkpoint_uri: str | os.PathLike[str],
        include_optimizer_state: bool = False,
        *,
        format: Literal["onward", "onnxruntime"] = "onward",  # noqa: A002
    ) -> None:
        """Write a checkpoint. Whoever is killed meanwhile leaves the old file or the new one, whole.

        With `include_optimizer_state`, training continues from the file exactly as it would have without it: the slots
        of the optimizer, the step, the learning rate and the state of its schedule are saved. Gradients that are being
        accumulated are not. The format "onnxruntime" is read by onnxruntime-training 1.18 and 1.19 and has no place for
        the learning rate.
        """
        if not isinstance(state, CheckpointState):
            raise TypeError(f"Invalid argument for save_checkpoint received {type(state)}")
        formats = {"onward": checkpoint.save, "onnxruntime": odtc.save}
        if format not in formats:
            raise OnwardError(f"format={format!r} is not known; use {' or '.join(map(repr, formats))}")
        with state._state.access.shared():
            formats[format](state._state, checkpoint_uri, include_optimizer=include_optimizer_state)

    @property
    def parameters(self) -> Parameters:
        return Parameters(self._state)

    @property
    def properties(self) -> Properties:
        return Properties(self._state)

    def __repr__(self) -> str:
        kind = "nominal, " if self._state.nominal else ""
        return f"CheckpointState({kind}{len(self.parameters)} parameters, {len(self.properties)} properties)"


def _plain(value: Any) -> Property:
    """A property as the plain Python type that it is saved as."""
    if isinstance(value, (bool, np.bool_)):
        return int(value)
    if isinstance(value, (int, np.integer)):
        number = int(value)
        # Beyond 64 bits other programs cannot read it; the original makes it a float, too.
        return number if -(2**63) <= number < 2**63 else float(number)
    if isinstance(value, (float, np.floating)):
        return float(value)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, str):
        return str(value)
    raise TypeError(f"a property must be an int, a float or a str, not {type(value).__name__}")

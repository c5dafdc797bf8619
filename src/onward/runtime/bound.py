"""A session whose parameters are tensors of a state, bound to it once and read in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime

from onward.runtime.tensors import FlatTensors, value_of

UserInput = Any  # np.ndarray | onnxruntime.OrtValue | nested lists
Output = Any  # onnxruntime.OrtValue | np.ndarray
Destinations = Mapping[str, tuple[FlatTensors, str]]


@dataclass
class _Binding:
    """Inputs and outputs of one run at a time."""

    io: Any
    destinations: Destinations | None = None  # those that are bound


class BoundSession:
    """Runs a session; any number of threads may do so at once, each with a binding of its own.

    Args:
        parameters: the inputs that are tensors of the state.
        outputs: those of the user.
    """

    def __init__(
        self, session: onnxruntime.InferenceSession, parameters: Mapping[str, FlatTensors], outputs: Sequence[str]
    ) -> None:
        self.inputs = {value.name: value for value in session.get_inputs()}
        self._session, self._outputs = session, list(outputs)
        self._parameters = {name: tensors for name, tensors in parameters.items() if name in self.inputs}
        self._idle: list[_Binding] = []  # as many as there were runs at once
        self._are_tensors = all(value.type.startswith("tensor(") for value in session.get_outputs())

    def run(
        self,
        feeds: Mapping[str, UserInput],
        destinations: Destinations,
        others: Mapping[str, onnxruntime.OrtValue],
    ) -> list[Output]:
        """The outputs of the user; `destinations` says which tensors other outputs become."""
        if not self._are_tensors or any(isinstance(x, np.ndarray) and x.dtype.kind in "OU" for x in feeds.values()):
            return self._run_copying(feeds, destinations, others)
        try:
            binding = self._idle.pop()
        except IndexError:
            binding = self._bind()
        try:
            return self._run(binding, feeds, destinations, others)
        finally:
            self._idle.append(binding)

    def _bind(self) -> _Binding:
        io = self._session.io_binding()
        for name, tensors in self._parameters.items():
            io.bind_ortvalue_input(name, tensors.ortvalue(name))
        return _Binding(io)

    def _run(
        self,
        binding: _Binding,
        feeds: Mapping[str, UserInput],
        destinations: Destinations,
        others: Mapping[str, onnxruntime.OrtValue],
    ) -> list[Output]:
        io = binding.io
        for name, value in feeds.items():
            if isinstance(value, np.ndarray):
                if value.dtype.isbuiltin == 1:
                    io.bind_cpu_input(name, value)
                else:  # bfloat16
                    io.bind_ortvalue_input(name, value_of(value))
            else:
                io.bind_ortvalue_input(name, value)
        for name, value in others.items():
            io.bind_ortvalue_input(name, value)
        for name in self._outputs:  # each time: else the run would write over what the last one has returned
            io.bind_output(name)
        if destinations is not binding.destinations:
            for name, (tensors, key) in destinations.items():
                io.bind_ortvalue_output(name, tensors.ortvalue(key))
            binding.destinations = destinations
        self._session.run_with_iobinding(io)
        return list(io.get_outputs()[: len(self._outputs)])

    def _run_copying(
        self, feeds: Mapping[str, UserInput], destinations: Destinations, others: Mapping[str, onnxruntime.OrtValue]
    ) -> list[Output]:
        """The same with copies, because neither texts nor outputs that are no tensors can be bound."""
        parameters = {name: tensors.ortvalue(name) for name, tensors in self._parameters.items()}
        results = self._session.run([*self._outputs, *destinations], {**feeds, **others, **parameters})
        for (tensors, key), array in zip(destinations.values(), results[len(self._outputs) :], strict=True):
            tensors.assign(key, array)
        return list(results[: len(self._outputs)])

"""What is bound to a run of a TrainingSession."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.capi import _pybind_state as ort


class TrainingBinding(onnxruntime.IOBinding):  # type: ignore[misc]
    """Inputs and outputs of the user; the session adds its state to each run."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        super().__init__(session)
        self.owner = session
        self.record = self._iobinding = Record()
        self._held: dict[str, onnxruntime.OrtValue] = {}

    def bind_ortvalue_input(self, name: str, ortvalue: onnxruntime.OrtValue) -> None:
        """Bind a tensor, and keep it: native ones do not keep the array alive that they were made over."""
        super().bind_ortvalue_input(name, ortvalue)
        self._held[name] = ortvalue


class Record:
    """What is bound, to be bound again for each run: a native binding would write over the results of the last one."""

    def __init__(self) -> None:
        self.inputs: dict[str, tuple[str, tuple[Any, ...]]] = {}
        self.outputs: dict[str, tuple[str, tuple[Any, ...]]] = {}
        self.results: list[Any] = []

    def replayed(self, session: Any, inputs: Collection[str]) -> Any:
        """A native binding of a session that has these inputs, with what was bound here."""
        native = ort.SessionIOBinding(session)
        bound = {name: call for name, call in self.inputs.items() if name in inputs}
        for name, (method, rest) in (*bound.items(), *self.outputs.items()):
            getattr(native, method)(name, *rest)
        return native

    def readable(self) -> dict[str, Any]:
        """The bound inputs that an error can describe."""
        found: dict[str, Any] = {}
        for name, (method, rest) in self.inputs.items():
            if method == "bind_ortvalue_input" and rest[0].is_tensor() and rest[0].data_type() != "tensor(bfloat16)":
                found[name] = onnxruntime.OrtValue(rest[0])
            elif len(rest) == 1 and isinstance(rest[0], np.ndarray):
                found[name] = rest[0]
        return found

    def bind_input(self, name: str, *rest: Any) -> None:
        self.inputs[name] = ("bind_input", rest)

    def bind_ortvalue_input(self, name: str, value: Any) -> None:
        self.inputs[name] = ("bind_ortvalue_input", (value,))

    def bind_output(self, name: str, *rest: Any) -> None:
        self.outputs[name] = ("bind_output", rest)

    def bind_ortvalue_output(self, name: str, value: Any) -> None:
        self.outputs[name] = ("bind_ortvalue_output", (value,))

    def clear_binding_inputs(self) -> None:
        self.inputs.clear()

    def clear_binding_outputs(self) -> None:
        self.outputs.clear()
        self.results = []

    def synchronize_inputs(self) -> None:
        """Nothing is under way between runs."""

    def synchronize_outputs(self) -> None:
        """Nothing is under way between runs."""

    def get_outputs(self) -> Any:
        vector = ort.OrtValueVector()
        for value in self.results:
            vector.push_back(value)
        return vector

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        return [np.array(value.numpy()) for value in self.results]

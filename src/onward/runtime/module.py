"""Runs the training and the evaluation graph over the tensors of a state, in place and without copies."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from onward.errors import OnwardError
from onward.runtime import wire
from onward.runtime.session import open_session, providers_for
from onward.runtime.state import State
from onward.signature import METADATA_KEY, Role, Signature

# What `onward.training.split` calls the nodes that add gradients up.
_ACCUMULATE = "accumulate/"

UserInput = Any  # np.ndarray | onnxruntime.OrtValue | nested lists


class Graph:
    """A session over one model file, with the state's tensors bound to it once."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        state: State,
        options: onnxruntime.SessionOptions | None,
        providers: list[Any],
    ) -> None:
        self.path = Path(path)
        self._state, self._options, self._providers = state, options, providers
        self._open()

    def _open(self) -> None:
        if not self.path.is_file():
            raise OnwardError(f"there is no model file at {str(self.path)!r}")
        model = wire.parse(self.path.read_bytes())
        if METADATA_KEY not in model.metadata:
            raise OnwardError(
                f"{str(self.path)!r} was not made by onward: it does not say what its inputs are for. Generate it with "
                "onward.artifacts.generate_artifacts; graphs of onnxruntime-training need that package's operators."
            )
        self.signature = Signature.from_json(model.metadata[METADATA_KEY])
        self.user_inputs = self.signature.input_names(Role.INPUT, Role.TARGET)
        self.user_outputs = self.signature.output_names(Role.LOSS, Role.OUTPUT)
        self._leave_accumulation_to_the_state(model)
        frozen = {name: array for name, array in self._state.frozen.items() if name in model.initializers}
        model.freeze({name: array for name, array in frozen.items() if not model.holds(name, array)})
        self._frozen_version = self._state.frozen_version
        self.session = open_session(
            model.serialize(), folder=self.path.parent, options=self._options, providers=self._providers
        )
        self._input_types = {value.name: value for value in self.session.get_inputs()}
        self.binding = self.session.io_binding()
        for name in self.signature.input_names(Role.PARAMETER):
            self.binding.bind_ortvalue_input(name, self._state.trainable.ortvalue(name))
        for name in self.signature.input_names(Role.BUFFER):
            self.binding.bind_ortvalue_input(name, self._state.frozen.ortvalue(name))

    def _leave_accumulation_to_the_state(self, model: wire.WireModel) -> None:
        """Let the graph write each gradient where the state wants it, instead of adding it to a buffer.

        Most steps reset the gradients; then the additions would be two passes over all of them for nothing.
        """
        gradients = self.signature.output_names(Role.GRADIENT)
        if not gradients:
            return
        model.nodes = [node for node in model.nodes if not node.name.startswith(_ACCUMULATE)]
        for name in self.signature.input_names(Role.GRADIENT, Role.RESET):
            del model.inputs[name]
        kept = [name for name in model.outputs if name not in set(gradients)]
        model.set_outputs([*kept, *(gradient_name(self.signature.links[name]) for name in gradients)])

    def run(self, inputs: Sequence[UserInput], fresh: dict[str, onnxruntime.OrtValue]) -> list[onnxruntime.OrtValue]:
        """Run once; `fresh` says where outputs other than the user's go."""
        if self._frozen_version != self._state.frozen_version:
            self._open()
        if len(inputs) != len(self.user_inputs):
            raise OnwardError(
                f"the model takes {len(self.user_inputs)} inputs ({', '.join(self.user_inputs)}), but {len(inputs)} "
                "were given"
            )
        binding = self.binding
        for name, value in zip(self.user_inputs, inputs, strict=True):
            if name in self._input_types:  # a target that nothing uses is not an input of the session
                self._bind(name, value)
        for name in self.user_outputs:
            binding.bind_output(name)
        for name, value in fresh.items():
            binding.bind_ortvalue_output(name, value)
        self.session.run_with_iobinding(binding)
        return binding.get_outputs()[: len(self.user_outputs)]

    def _bind(self, name: str, value: UserInput) -> None:
        if isinstance(value, onnxruntime.OrtValue):
            self.binding.bind_ortvalue_input(name, value)
            return
        expected = self._input_types[name]
        array: np.ndarray = np.ascontiguousarray(value)
        wanted = _NUMPY_TYPES.get(expected.type)
        if wanted is not None and array.dtype != wanted:
            raise OnwardError(f"input {name!r} must be {wanted}, not {array.dtype}; convert it with .astype({wanted})")
        shape = expected.shape
        if len(shape) != array.ndim or any(
            isinstance(a, int) and a != b for a, b in zip(shape, array.shape, strict=False)
        ):
            raise OnwardError(f"input {name!r} must have shape {shape}, not {list(array.shape)}")
        self.binding.bind_cpu_input(name, array)


class TrainingModule:
    """Forward and backward passes over a state."""

    def __init__(
        self,
        training: str | os.PathLike[str],
        state: State,
        evaluation: str | os.PathLike[str] | None = None,
        *,
        device: str = "cpu",
        options: onnxruntime.SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
    ) -> None:
        chosen = providers_for(device, providers)
        self.state = state
        self.training = Graph(training, state, options, chosen)
        self.evaluation = None if evaluation is None else Graph(evaluation, state, options, chosen)
        self.accumulating = False
        trained = {name: state.trainable.layout[name] for name in state.trainable}
        self.gradients = state.gradients = type(state.trainable)(trained)
        self._extra: Any = None
        signature = self.training.signature
        self._parameters = [signature.links[name] for name in signature.output_names(Role.GRADIENT)]
        self._buffers = {name: signature.links[name] for name in signature.output_names(Role.BUFFER)}

    def train_step(self, inputs: Sequence[UserInput]) -> list[onnxruntime.OrtValue]:
        """Run forward and backward; gradients replace the old ones, or add to them since the last `reset`."""
        destination = self.gradients
        if self.accumulating:
            if self._extra is None:
                self._extra = self.gradients.zeros_like()
            destination = self._extra
        fresh = {gradient_name(name): destination.ortvalue(name) for name in self._parameters}
        fresh.update({name: self.state.frozen.ortvalue(buffer) for name, buffer in self._buffers.items()})
        outputs = self.training.run(inputs, fresh)
        if self.accumulating:
            for dtype, buffer in self.gradients.buffers.items():
                np.add(buffer, destination.buffers[dtype], out=buffer)
        self.accumulating = True
        return outputs

    def eval_step(self, inputs: Sequence[UserInput]) -> list[onnxruntime.OrtValue]:
        if self.evaluation is None:
            raise OnwardError("Evaluation session not initialized. Give the module an evaluation model.")
        return self.evaluation.run(inputs, {})

    def reset(self) -> None:
        """Let the next training step replace the gradients."""
        self.accumulating = False


def gradient_name(parameter: str) -> str:
    return f"{parameter}_grad"


_NUMPY_TYPES = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(double)": np.dtype(np.float64),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(int64)": np.dtype(np.int64),
    "tensor(int32)": np.dtype(np.int32),
    "tensor(int16)": np.dtype(np.int16),
    "tensor(int8)": np.dtype(np.int8),
    "tensor(uint8)": np.dtype(np.uint8),
    "tensor(bool)": np.dtype(np.bool_),
}

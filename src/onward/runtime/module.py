"""Forward and backward passes over a state, in place and without copies."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime

from onward.errors import OnwardError
from onward.runtime.bound import Output, UserInput
from onward.runtime.device import choose
from onward.runtime.export import export_for_inference
from onward.runtime.finite import Alarm, check_loss, warn_of_nonfinite
from onward.runtime.graph import Graph, gradient_name
from onward.runtime.inputs import as_value, is_value
from onward.runtime.session import ModelSource
from onward.runtime.state import RandomState, State
from onward.runtime.tensors import FlatTensors, value_of
from onward.signature import Role

__all__ = ["TrainingModule", "UserInput", "is_value"]


class TrainingModule:
    """A training and an evaluation graph over one state.

    Any number of threads may use it, and other modules of the same state: evaluations run side by side, everything that
    changes something runs alone.
    """

    def __init__(
        self,
        training: ModelSource,
        state: State,
        evaluation: ModelSource | None = None,
        *,
        device: str = "cpu",
        options: onnxruntime.SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        alarm: Alarm = warn_of_nonfinite,
    ) -> None:
        self.device, self.providers = choose(device, providers)
        self.options = options
        self.state = state
        self._alarm = alarm  # told of a loss that is not finite, in training
        self.accumulating = False
        self.rank = 0  # among processes that train together: each draws other random numbers
        self._parameters: FlatTensors | None = None  # those that the gradients belong to
        self._gradients: FlatTensors | None = None
        self._extra: FlatTensors | None = None
        self._reset = np.ones(1, np.bool_)
        with state.access.exclusive():
            state.move(self.device)
            self.training = Graph(training, state, options, self.providers)
            self.evaluation = None if evaluation is None else self.graph(evaluation)
            self._check_complete()
            self._bind_scalars()
            if not state.nominal:
                state.gradients = self.gradients

    def graph(self, model: ModelSource) -> Graph:
        """Another graph over the state of this module."""
        return Graph(model, self.state, self.options, self.providers)

    def open_evaluation(self, model: ModelSource) -> None:
        """Take an evaluation graph, where there is none yet."""
        with self.state.access.exclusive():
            if self.evaluation is None:
                self.evaluation = self.graph(model)

    @property
    def gradients(self) -> FlatTensors:
        """Those of this module, over the state as it is now; zeros until the first training step."""
        self._require_state()
        if self._gradients is None or self._parameters is not self.state.trainable:
            self._parameters = self.state.trainable
            self._gradients, self._extra = self.state.trainable.zeros_like(), None
            self._destinations = self._write_to(self._gradients)
            self.accumulating = False
        return self._gradients

    def _require_state(self) -> None:
        """See that there are parameters, where this module can use them."""
        self.state.require_values()
        place = self.state.trainable.device
        if place != self.device:
            raise OnwardError(
                f"the parameters are on {place}, where another module has moved them, but this module is on "
                f"{self.device}: modules that share a state have to be on one device"
            )

    def _check_complete(self) -> None:
        signature = self.training.signature
        trained = {signature.links[name] for name in self.training.gradients}
        missing = [name for name in self.state.trainable_names if name not in trained]
        if missing:
            raise OnwardError(
                f"{str(self.training.path)!r} computes no gradient of {missing[0]!r}, which is trainable in the "
                "checkpoint; they were not generated together"
            )

    def _write_to(self, gradients: FlatTensors) -> dict[str, tuple[FlatTensors, str]]:
        """Where the outputs of the training graph go."""
        graph, links = self.training, self.training.signature.links
        destinations = {name: (self.state.frozen, links[name]) for name in graph.signature.output_names(Role.BUFFER)}
        for name in graph.gradients:
            destinations[name if graph.accumulates else gradient_name(links[name])] = (gradients, links[name])
        return destinations

    def train_step(self, inputs: Sequence[UserInput], weight: float = 1.0) -> list[Output]:
        """Run forward and backward; gradients replace the old ones, or add to them since the last `reset`.

        `weight` is what gradients are multiplied with, in a training graph that takes one.
        """
        with self.state.access.exclusive():
            gradients, random = self.gradients, self._draw()
            if self._weights:
                self._weight[...] = weight
                random = {**random, **self._weights}
            if self.training.accumulates:
                outputs = self.training.run(inputs, self._destinations, {**random, **self._accumulation(inputs)})
            elif self.accumulating:
                if self._extra is None:
                    self._extra = gradients.zeros_like()
                    self._extra_destinations = self._write_to(self._extra)
                outputs = self.training.run(inputs, self._extra_destinations, random)
                gradients.add(self._extra)
            else:
                outputs = self.training.run(inputs, self._destinations, random)
            self.accumulating = True
            self.state.gradients = gradients
            if self._random:
                self.state.random.passes += 1
            self._check_loss(self.training, outputs, inputs, self._alarm)
            return outputs

    def seed(self, seed: int) -> None:
        """Let the random operators of the training graph draw from another seed, from the beginning."""
        if not isinstance(seed, (int, np.integer)) or not -(2**63) <= seed < 2**63:
            raise OnwardError(f"a seed is an integer of 64 bits, not {seed!r}")
        with self.state.access.exclusive():
            self.state.random = RandomState(int(seed))

    def _bind_scalars(self) -> None:
        """What a training graph takes besides inputs and parameters: scalars, set before each pass."""
        signature = self.training.signature
        self._seed, self._pass = np.zeros((), np.int64), np.zeros((), np.int64)
        self._random = {
            name: value_of(scalar)
            for role, scalar in ((Role.SEED, self._seed), (Role.PASS, self._pass))
            for name in signature.input_names(role)
        }
        self._weight = np.ones((), np.float64)
        self._weights = {name: value_of(self._weight) for name in signature.input_names(Role.WEIGHT)}

    def _draw(self) -> dict[str, onnxruntime.OrtValue]:
        """The inputs that say what this pass draws."""
        if self._random:
            random = self.state.random
            self._seed[...], self._pass[...] = random.seed_of(self.rank), random.passes
        return self._random

    def _accumulation(self, inputs: Sequence[UserInput]) -> dict[str, onnxruntime.OrtValue]:
        """What a graph that adds gradients up itself needs: it reads each buffer in one addition, then writes it."""
        signature, links = self.training.signature, self.training.signature.links
        self._reset[...] = not self.accumulating
        others = {name: value_of(self._reset) for name in signature.input_names(Role.RESET)}
        for name in signature.input_names(Role.GRADIENT):
            if links[name] in self.gradients:
                others[name] = self.gradients.ortvalue(links[name])
            else:  # of an input of the user, whose shape changes from step to step
                like = as_value(inputs[self.training.user_inputs.index(links[name])])
                array = np.asarray(like.numpy() if isinstance(like, onnxruntime.OrtValue) else like)
                others[name] = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros_like(array))
        return others

    def eval_step(self, inputs: Sequence[UserInput], alarm: Alarm = warn_of_nonfinite) -> list[Output]:
        """Run the evaluation graph; `alarm` is told of a loss that is not finite."""
        if self.evaluation is None:
            raise OnwardError("Evaluation session not initialized. Give the module an evaluation model.")
        with self.state.access.shared():
            self._require_state()
            outputs = self.evaluation.run(inputs)
            self._check_loss(self.evaluation, outputs, inputs, alarm)
            return outputs

    def _check_loss(self, graph: Graph, outputs: Sequence[Output], inputs: Sequence[UserInput], alarm: Alarm) -> None:
        """Tell of a loss that is not finite, which costs nothing as long as it is."""
        if graph.signature.outputs[graph.user_outputs[0]] is Role.LOSS:
            values = (np.asarray(value) if not is_value(value) else as_value(value) for value in inputs)
            check_loss(outputs[0], zip(graph.user_inputs, values, strict=True), self.state, alarm)

    def reset(self) -> None:
        """Let the next training step replace the gradients."""
        self.accumulating = False

    def parameter_names(self, trainable_only: bool) -> list[str]:
        """The parameters in the order of the training graph."""
        state = self.state
        wanted = state.trainable_names if trainable_only else [*state.trainable_names, *state.frozen_names]
        order = {name: index for index, name in enumerate(self.training.parameter_order())}
        return sorted(wanted, key=lambda name: order.get(name, len(order)))

    def parameter_count(self, trainable_only: bool) -> int:
        """The number of elements of all parameters."""
        return sum(math.prod(self._shape(name)) for name in self.parameter_names(trainable_only))

    def parameters_as_buffer(self, trainable_only: bool) -> onnxruntime.OrtValue:
        """A copy of all parameters, one after the other."""
        with self.state.access.shared():
            self.state.require_values()
            arrays = [np.array(self.state.tensor(name)).reshape(-1) for name in self.parameter_names(trainable_only)]
        kinds = {array.dtype for array in arrays}
        if len(kinds) > 1:
            raise OnwardError(
                f"Data types must match. The parameters have the types {', '.join(sorted(map(str, kinds)))} and cannot "
                "be one buffer; use trainable_only=True"
            )
        if not arrays:
            raise OnwardError("there are no parameters to copy")
        flat = np.concatenate(arrays)
        if flat.dtype.name == "bfloat16":
            return value_of(flat)
        # In memory of its own: what `.numpy()` of one over `flat` returns does not keep that alive.
        place = self.device.ort_name, self.device.index
        buffer = onnxruntime.OrtValue.ortvalue_from_shape_and_type([flat.size], flat.dtype, *place)
        buffer.update_inplace(flat)
        return buffer

    def parameters_from_buffer(self, buffer: Any, trainable_only: bool) -> None:
        """Copy parameters from an array or OrtValue with all of them, one after the other."""
        if self.state.nominal and trainable_only:
            raise OnwardError(
                "For nominal checkpoint state, all parameters need to be loaded; call copy_buffer_to_parameters with "
                "the values of all of them (trainable_only = false)."
            )
        buffer = as_value(buffer)
        flat = buffer.numpy() if isinstance(buffer, onnxruntime.OrtValue) else np.asarray(buffer)
        flat = flat.reshape(-1)
        names = self.parameter_names(trainable_only)
        shapes = {name: self._shape(name) for name in names}
        expected = sum(map(math.prod, shapes.values()))
        if flat.size != expected:
            raise OnwardError(f"Parameters buffer size incorrect. Expected:{expected}, Actual:{flat.size}")
        for name in names:
            dtype = self.state.type_of(name).dtype
            if flat.dtype != dtype:
                raise OnwardError(f"Data types must match. Parameter {name!r} is {dtype}, the buffer is {flat.dtype}")
        arrays, start = {}, 0
        for name, shape in shapes.items():
            end = start + math.prod(shape)
            arrays[name] = flat[start:end].reshape(shape)
            start = end
        with self.state.access.exclusive():
            if self.state.nominal:
                self.state.complete(arrays, self.device)
                self.state.gradients = self.gradients
                return
            for name, array in arrays.items():
                if name in self.state.trainable or not np.array_equal(self.state.tensor(name), array):
                    self.state.assign(name, array)

    def statistics(self) -> dict[str, np.ndarray]:
        """Copies of the running statistics that a training step changes."""
        names = self.training.signature.input_names(Role.BUFFER)
        return {name: np.array(self.state.frozen[name]) for name in names}

    def set_statistics(self, statistics: Mapping[str, np.ndarray]) -> None:
        """Put running statistics back."""
        with self.state.access.exclusive():
            for name, array in statistics.items():
                self.state.frozen.assign(name, array)

    def export(self, path: str | os.PathLike[str], outputs: Sequence[str]) -> None:
        """Write a model for inference with the current parameters."""
        if self.evaluation is None:
            raise OnwardError("Eval model was not provided. Cannot export a model for inferencing.")
        with self.state.access.shared():
            self.state.require_values()
            export_for_inference(self.evaluation.source, self.state, path, outputs, self.options)

    def _shape(self, name: str) -> tuple[int, ...]:
        shape = self.state.type_of(name).shape
        for graph in (self.training, self.evaluation):
            if shape is None and graph is not None:
                shape = graph.shape_of(name)
        if shape is None:
            raise OnwardError(f"the shape of {name!r} is neither in the nominal checkpoint nor in the training model")
        return shape

"""TrainingSession: a session whose runs train."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from onward.errors import OnwardError, UnknownNameError
from onward.graph.naming import quoted
from onward.graph.saving import save_model
from onward.runtime import wire
from onward.runtime.device import choose
from onward.runtime.files import replacing_together
from onward.runtime.inputs import as_value
from onward.runtime.refusal import explain
from onward.runtime.session import open_session, refusals_explained, suitable_options
from onward.runtime.tensors import array_of, value_of
from onward.session.binding import Record, TrainingBinding
from onward.session.optimizers import MOMENTS, STEP, UPDATE_COUNT
from onward.session.parameters import TrainingParameters
from onward.session.step import GROUP, StepGraph, step_graph
from onward.signature import CHECK, Role

_TRAINING_MODE = "training_mode"
_SHARED = "shared_optimizer_state"


class TrainingSession(onnxruntime.InferenceSession):  # type: ignore[misc]
    """Each `run` computes the loss and updates the weights.

    Inputs are those of the model, then the learning rate, a float of shape [1]. With
    `RunOptions.only_execute_path_to_fetches`, a run only computes what is fetched and changes nothing: with
    `training_mode` as in training, without (or with ``training_mode=False`` among the inputs) as in evaluation.

    Args:
        path_or_bytes: the model with its loss.
        parameters: what is trained, and how.

    Attributes:
        seed: what random operators draw from, together with `passes`, the number of runs in training so far.
        added: the number of runs since the last update that added gradients up.
    """

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        parameters: TrainingParameters,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
    ) -> None:
        if isinstance(path_or_bytes, bytes):
            model: Any = onnx.load_model_from_string(path_or_bytes)
        elif isinstance(path_or_bytes, (str, os.PathLike)):
            model = os.fspath(path_or_bytes)
        else:
            raise TypeError(f"Unable to load from type '{type(path_or_bytes)}'")
        if not isinstance(parameters, TrainingParameters):
            raise TypeError(f"parameters must be TrainingParameters, not {type(parameters).__name__}")
        parameters.check()
        self._step: StepGraph = step_graph(model, parameters)
        self._write_graphs(parameters)
        options = suitable_options(sess_options)
        providers = ["CPUExecutionProvider"] if providers is None else providers
        with refusals_explained(providers):
            super().__init__(
                self._step.training.SerializeToString(), options, providers=providers, provider_options=provider_options
            )
        self._place, _ = choose(providers=self.get_providers())
        device = onnxruntime.OrtDevice.make(self._place.ort_name, self._place.index)
        self._device = device._get_c_device()
        given = self.get_provider_options()
        self._used = [(name, given[name]) if given.get(name) else name for name in self.get_providers()]
        self._paths: dict[tuple[Any, ...], onnxruntime.InferenceSession] = {}
        self._rules = [node.name for node in self._step.training.graph.node if node.name.startswith(CHECK)]
        self._busy = threading.RLock()
        self.seed, self.passes, self.added = 0, 0, 0
        self._values = {name: self._value(array) for name, array in self._step.initial.items()}
        self._begin_with(parameters.optimizer_initial_state())
        names = {value.name: value for value in super().get_inputs()}
        self._user_inputs = [names[name] for name in self._step.inputs if name in names]
        made = {value.name: value for value in super().get_outputs()}
        self._user_outputs = [made[name] for name in self._step.outputs]
        self.loss_scale_input_name = None

    def _write_graphs(self, parameters: TrainingParameters) -> None:
        written = {
            parameters.model_after_graph_transforms_path: self._step.evaluation,
            parameters.model_with_gradient_graph_path: self._step.training,
            parameters.model_with_training_graph_path: self._step.training,
        }
        for place, model in written.items():
            if place:
                path = Path(place)
                with replacing_together(path.parent) as drafts:
                    save_model(model, drafts / path.name)

    # Runs -------------------------------------------------------------------------------------------------------------

    def get_inputs(self) -> list[Any]:
        """Those of the model, then the learning rate."""
        return list(self._user_inputs)

    def get_outputs(self) -> list[Any]:
        """Those of the model, then what the session adds."""
        return list(self._user_outputs)

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None) -> Any:
        """Train one step, and return what is fetched as arrays."""
        found = self.run_with_ort_values(output_names, input_feed, run_options)
        return [array_of(value) if value.is_tensor() else value.numpy() for value in found]

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, Any], run_options: Any = None
    ) -> Any:
        """The same, as tensors of onnxruntime."""
        fetched, feeds = list(output_names or self._step.outputs), dict(input_dict_ort_values)
        fed_mode = None if _TRAINING_MODE in self._step.inputs else feeds.pop(_TRAINING_MODE, None)
        training = getattr(run_options, _TRAINING_MODE, True) if fed_mode is None else bool(np.all(fed_mode))
        self._check(feeds, fetched)
        binding = self.io_binding()
        for name, value in feeds.items():
            binding.bind_ortvalue_input(name, self._value(value))
        for name in fetched:
            binding.bind_output(name, self._place.ort_name, self._place.index)
        self._run(binding.record, run_options, training)
        return binding.get_outputs()

    def run_async(self, *arguments: Any, **options: Any) -> None:
        """Refused: a step needs the state that the one before it leaves."""
        raise OnwardError("a TrainingSession runs one step after the other; use run or run_with_iobinding")

    run_with_ortvaluevector = run_async

    def io_binding(self) -> TrainingBinding:
        """A binding for `run_with_iobinding`."""
        return TrainingBinding(self)

    def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> None:
        """Train one step over bound inputs and outputs."""
        if not isinstance(iobinding, TrainingBinding) or iobinding.owner is not self:
            raise OnwardError("the binding belongs to another session; make one with session.io_binding()")
        self._run(iobinding.record, run_options, getattr(run_options, _TRAINING_MODE, True))

    def _run(self, record: Record, run_options: Any, training: bool) -> None:
        only_path = bool(getattr(run_options, "only_execute_path_to_fetches", False))
        if not training and not only_path:
            raise OnwardError(
                "training_mode=False asks for an evaluation, but a run updates the weights; set "
                "RunOptions.only_execute_path_to_fetches too"
            )
        with self._busy:
            replaced = self._replaced(only_path, record.outputs)
            session = self._path_to([*record.outputs, *replaced.values()], training) if only_path else self._sess
            needed = [value.name for value in session.inputs_meta]
            missing = [name for name in needed if name in self._step.inputs and name not in record.inputs]
            if missing:
                raise ValueError(f"Required inputs ({missing}) are missing from input feed ({list(record.inputs)}).")
            native = record.replayed(session, needed)
            state = {**self._values, **self._drawn()}
            for name in (name for name in needed if name in state):
                native.bind_ortvalue_input(name, state[name]._ortvalue)
            for name in replaced.values():
                native.bind_output(name, self._device)
            try:
                session.run_with_iobinding(native, run_options)
            except Exception as error:  # onnxruntime's exceptions have no common base but this
                said = str(error).strip()
                raise OnwardError(explain(said, "the model", record.readable(), (), self._rules)) from error
            made, count = native.get_outputs(), len(record.outputs)
            record.results = [made[index] for index in range(count)]
            for index, name in enumerate(replaced, start=count):
                self._values[name] = onnxruntime.OrtValue(made[index])
            self.passes += training
            if replaced:
                self.added = self.added + 1 if only_path else 0

    def _path_to(self, outputs: list[str], training: bool) -> Any:
        """A session of what some outputs need; stock onnxruntime runs graphs as a whole.

        In evaluation Dropout is off, and BatchNormalization uses its running statistics.
        """
        key = (training, *sorted(outputs))
        if key not in self._paths:
            model = wire.parse((self._step.training if training else self._step.evaluation).SerializeToString())
            wrong = [name for name in outputs if name not in model.outputs]
            if wrong:
                raise OnwardError(f"an evaluation has no {quoted(wrong)}: it computes no gradients")
            model.set_outputs(sorted(outputs))
            model.prune()
            options = self.get_session_options()
            options.optimized_model_filepath = ""  # that of the whole is written there
            self._paths[key] = open_session(model.serialize(), options=options, providers=self._used)
        return self._paths[key]._sess

    def _replaced(self, only_path: bool, fetched: Collection[str]) -> dict[str, str]:
        """State that a run changes, and the outputs that it becomes."""
        if not only_path:
            return self._step.updated
        return self._step.accumulated if GROUP in fetched else {}

    def _drawn(self) -> dict[str, onnxruntime.OrtValue]:
        """What random operators draw from: the seed, and the number of runs in training so far."""
        numbers = {Role.SEED: self.seed, Role.PASS: self.passes}
        return {name: self._value(np.array(numbers[role])) for name, role in self._step.random.items()}

    def _check(self, feeds: Mapping[str, Any], fetched: Sequence[str]) -> None:
        unknown = [name for name in feeds if name not in self._step.inputs]
        if unknown:
            raise UnknownNameError(
                f"there is no input {quoted(unknown)}; the session takes {quoted(self._step.inputs)}"
            )
        unknown = [name for name in fetched if name not in self._step.outputs]
        if unknown:
            raise UnknownNameError(
                f"there is no output {quoted(unknown)}; the session has {quoted(self._step.outputs)}"
            )

    def _value(self, value: Any) -> onnxruntime.OrtValue:
        """Anything that is fed, on the device of the session."""
        value = as_value(value)
        if isinstance(value, onnxruntime.OrtValue):
            return value
        array = np.asarray(value)
        if self._place.is_host or array.dtype.name == "bfloat16":
            return value_of(np.ascontiguousarray(array).reshape(array.shape))
        return onnxruntime.OrtValue.ortvalue_from_numpy(array, self._place.ort_name, self._place.index)

    # State ------------------------------------------------------------------------------------------------------------

    @property
    def weights(self) -> list[str]:
        """What is trained."""
        return list(self._step.weights)

    @property
    def input_names(self) -> list[str]:
        """What can be fed: the inputs of the model, and the learning rate where there is something to train."""
        return list(self._step.inputs)

    @property
    def evaluation_model(self) -> bytes:
        """The model as it is evaluated, its weights and running statistics as inputs."""
        return self._step.evaluation.SerializeToString()

    def checkpointed(self) -> dict[str, Any]:
        """What `undo_update` takes. Nothing is copied: a run makes new tensors."""
        return dict(self._values)

    def undo_update(self, before: Mapping[str, Any]) -> None:
        """Give weights and the state of their optimizer the values they had before a run; what was added up is gone."""
        with self._busy:
            kept = {*self._step.statistics, *self._step.accumulated}
            self._values.update({name: value for name, value in before.items() if name not in kept})

    def get_state(self) -> dict[str, np.ndarray]:
        """The weights, the state of the optimizer, and running statistics, as arrays of their own."""
        with self._busy:
            return {public: self._read(public) for public in self._step.state}

    def check_sizes(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Refuse state of other sizes than this session has."""
        for public in (name for name in arrays if name in self._step.state):
            array, expected = arrays[public], self._step.initial[self._step.state[public][0]]
            if array.shape != expected.shape and not array.size == expected.size == 1:
                raise OnwardError(f"the state of {public!r} has shape {list(array.shape)}, not {list(expected.shape)}")

    def load_state(self, state_dict: Mapping[str, Any], strict: bool = False) -> None:
        """Set state; names that the session does not have are ignored, unless `strict`."""
        unknown = [name for name in state_dict if name not in self._step.state]
        if strict and unknown:
            raise UnknownNameError(
                f"the state has {quoted(unknown)}, which the session does not; it has {quoted(self._step.state)}"
            )
        known = {name: np.asarray(value) for name, value in state_dict.items() if name in self._step.state}
        self.check_sizes(known)
        with self._busy:
            for public, array in known.items():
                name, scale = self._step.state[public]
                expected = self._step.initial[name]
                scaled = array.reshape(expected.shape) / scale if scale != 1 else array.reshape(expected.shape)
                self._values[name] = self._value(np.array(scaled, expected.dtype))

    def get_model_state(self, include_mixed_precision_weights: bool = False) -> dict[str, dict[str, np.ndarray]]:
        """The weights and running statistics, under "full_precision", the only one there is."""
        del include_mixed_precision_weights
        with self._busy:
            names = (*self._step.weights, *self._step.statistics)
            return {"full_precision": {name: self._read(name) for name in names}}

    def get_optimizer_state(self) -> dict[str, dict[str, np.ndarray]]:
        """The state of the optimizer by weight, and what all of them share."""
        found: dict[str, dict[str, np.ndarray]] = {}
        with self._busy:
            for weight in self._step.weights:
                own = {kind: f"{kind}_{weight}" for kind in (*MOMENTS.values(), UPDATE_COUNT)}
                held = {kind: self._read(name) for kind, name in own.items() if name in self._step.state}
                if held:
                    found[weight] = held
            if STEP in self._step.state:
                found[_SHARED] = {STEP: self._read(STEP)}
        return found

    def get_sums(self) -> dict[str, np.ndarray]:
        """The gradients that were added up since the last update, by weight."""
        with self._busy:
            return {weight: np.array(array_of(self._values[name])) for weight, name in self._step.sums.items()}

    def load_sums(self, added: int, sums: Mapping[str, Any]) -> None:
        """Set the gradients of as many passes; weights that are left out have zeros."""
        known = {weight: np.asarray(array) for weight, array in sums.items() if weight in self._step.sums}
        for weight, array in known.items():
            expected = self._step.initial[self._step.sums[weight]].shape
            if array.shape != expected:
                raise OnwardError(f"the gradient of {weight!r} has shape {list(array.shape)}, not {list(expected)}")
        with self._busy:
            for weight, name in self._step.sums.items():
                empty = self._step.initial[name]
                self._values[name] = self._value(np.array(known.get(weight, empty), empty.dtype))
            self.added = added

    def get_partition_info_map(self) -> dict[str, Any]:
        """Nothing is distributed."""
        return {}

    def is_output_fp32_node(self, name: str) -> bool:
        """Whether an output is float32."""
        return any(value.name == name and value.type == "tensor(float)" for value in self._user_outputs)

    def _read(self, public: str) -> np.ndarray:
        name, scale = self._step.state[public]
        array = np.array(array_of(self._values[name]))
        return array if scale == 1 else (array * scale).astype(array.dtype)

    def _begin_with(self, given: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """The state of the optimizer that TrainingParameters has."""
        flat = {}
        for weight, own in given.items():
            for kind, value in own.items():
                flat[kind if weight == _SHARED else f"{kind}_{weight}"] = value
        self.load_state(flat, strict=True)

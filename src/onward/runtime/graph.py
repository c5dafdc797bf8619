"""A session over one model file, with the tensors of a state bound to it once."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import onnxruntime

from onward.errors import InvalidModelError, OnwardError
from onward.ort_format import is_ort_format
from onward.runtime import wire
from onward.runtime.bound import BoundSession, Destinations, Output, UserInput
from onward.runtime.inputs import checked_input, shape_of_value
from onward.runtime.refusal import check_targets, explain
from onward.runtime.session import ModelSource, default_options, open_session, path_of, read_model
from onward.runtime.state import State
from onward.runtime.tensors import value_of
from onward.signature import CHECK, METADATA_KEY, Role, Signature

# What `onward.training.split` calls the nodes that add gradients up.
_ACCUMULATE = "accumulate/"
# Frozen parameters beyond this size are handed to onnxruntime instead of being written into the model.
_LARGE = 2**30
_IN_MEMORY = "memory"

_NONE: Destinations = {}


class Graph:
    """Runs one model over a state.

    A model in main memory is edited before it is loaded: gradients are written where the state wants them, instead of
    being added to a buffer by the graph itself, because most steps reset them, and then the additions would be two
    passes over all of them for nothing. Models in onnxruntime's own format, and on other devices, run as they are.
    """

    def __init__(
        self,
        model: ModelSource,
        state: State,
        options: onnxruntime.SessionOptions | None,
        providers: list[Any],
    ) -> None:
        self.source, self.path = model, path_of(model)
        self._state, self._options, self._providers = state, options, providers
        self._bound: dict[bool, BoundSession] = {}  # whether as written
        self._opening = threading.Lock()
        content = read_model(self.source, "model file")
        self.fixed = is_ort_format(content)
        self.accumulates = False  # whether the graph itself adds gradients up
        if self.fixed:
            session = open_session(content, options=options, providers=providers)
            self._read_signature(dict(session.get_modelmeta().custom_metadata_map))
            self._types = {value.name: _numbers(value.shape) for value in session.get_inputs()}
            self._initializers: list[str] = []
            self._rules: list[str] = []
        else:
            parsed = self._parse(content)
            self._read_signature(parsed.metadata)
            described = (*parsed.inputs, *parsed.initializers)
            self._types = {name: (parsed.type_of(name) or (0, None))[1] for name in described}
            self._initializers = list(parsed.initializers)
            self._rules = [node.name for node in parsed.nodes if node.name.startswith(CHECK)]
        self._check_parameters()
        if not state.nominal:
            self._open(content)

    def _parse(self, content: bytes) -> wire.WireModel:
        try:
            return wire.parse(content)
        except InvalidModelError as error:
            raise InvalidModelError(f"{str(self.path)!r} cannot be read: {error}") from error

    def _read_signature(self, metadata: Mapping[str, str]) -> None:
        if METADATA_KEY not in metadata:
            raise OnwardError(
                f"{str(self.path)!r} was not made by onward: it does not say what its inputs are for. Generate it with "
                "onward.artifacts.generate_artifacts; graphs of onnxruntime-training need that package's operators."
            )
        self.signature = Signature.from_json(metadata[METADATA_KEY])
        self.user_inputs = self.signature.input_names(Role.INPUT, Role.TARGET)
        self.user_outputs = self.signature.output_names(Role.LOSS, Role.OUTPUT)
        if not self.user_outputs:
            raise OnwardError(f"{str(self.path)!r} is damaged: none of its outputs is said to be a loss or a result")
        self._targets = set(self.signature.input_names(Role.TARGET))
        trained = set(self._state.trainable_names)
        gradients = self.signature.output_names(Role.GRADIENT)
        # Gradients with respect to inputs of the user are outputs too, but they belong to no parameter.
        self.gradients = [name for name in gradients if self.signature.links[name] in trained]

    def _check_parameters(self) -> None:
        """Complain about a state that belongs to another model."""
        state = self._state
        known = {*state.trainable_names, *state.frozen_names}
        for name in self.signature.input_names(Role.PARAMETER, Role.BUFFER):
            if name not in known:
                raise OnwardError(
                    f"{str(self.path)!r} needs the parameter {name!r}, which the checkpoint does not have; they were "
                    "not generated together"
                )
            shape, given = self.shape_of(name), state.type_of(name).shape
            if shape is not None and given is not None and shape != given:
                raise OnwardError(
                    f"{str(self.path)!r} needs {name!r} of shape {list(shape)}, but the checkpoint has it of shape "
                    f"{list(given)}; they were not generated together"
                )

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        """The shape of a parameter, where the model says so."""
        shape = self._types.get(name)
        return shape if shape is not None and all(isinstance(size, int) for size in shape) else None

    def parameter_order(self) -> list[str]:
        """All parameters of the model, in its order."""
        inputs = self.signature.input_names(Role.PARAMETER, Role.BUFFER)
        return self.signature.parameters or [*inputs, *self._initializers]

    def _open(self, content: bytes, *, as_written: bool = False) -> None:
        """Load the model with the frozen parameters of the state; `as_written`: without onnxruntime's optimisations."""
        state = self._state
        buffers = self.signature.input_names(Role.BUFFER)
        state.constants.update(name for name in state.frozen if name not in buffers)
        options = self._options
        self._kept: list[Any] = []
        folder = None
        if self.fixed:
            self.accumulates = True
        else:
            model = self._parse(content)
            has_files = model.check_files(self.path.parent)
            self.accumulates = not state.trainable.device.is_host or not self._names_gradients(model)
            if not self.accumulates:
                self._leave_accumulation_to_the_state(model)
            options = self._freeze(model, options)
            if has_files:
                folder = self.path.parent
            content = model.serialize()
        session = open_session(
            content, folder=folder, options=options, providers=self._providers, as_written=as_written
        )
        parameters = dict.fromkeys(self.signature.input_names(Role.PARAMETER), state.trainable)
        parameters |= dict.fromkeys(buffers, state.frozen)
        self._bound[as_written] = BoundSession(session, parameters, self.user_outputs)
        self._version = state.version

    def _freeze(
        self, model: wire.WireModel, options: onnxruntime.SessionOptions | None
    ) -> onnxruntime.SessionOptions | None:
        """Put the frozen parameters of the state into the model, where they differ from what it has."""
        frozen, folder = self._state.frozen, self.path.parent
        names = [name for name in frozen if name in model.initializers]
        stale = {name: frozen[name] for name in names if not model.holds(name, frozen[name], folder)}
        if sum(array.nbytes for array in stale.values()) < _LARGE:
            model.freeze(stale)
            return options
        options = default_options() if options is None else options
        self._kept = list(stale.values())  # onnxruntime does not keep them alive
        options.add_external_initializers(list(stale), [value_of(array) for array in stale.values()])
        for name, array in stale.items():
            model.freeze_elsewhere(name, array, _IN_MEMORY)
        return options

    def _names_gradients(self, model: wire.WireModel) -> bool:
        """Whether gradients are there without the nodes that add them up; other tools may have rewritten the file."""
        outputs = self.signature.output_names(Role.GRADIENT)
        sums = {name for node in model.nodes if node.name.startswith(_ACCUMULATE) for name in node.outputs}
        made = {name for node in model.nodes for name in node.outputs} - sums
        wanted = [gradient_name(self.signature.links[name]) for name in outputs]
        return sums.issuperset(outputs) and all(name in made and name in model.value_info for name in wanted)

    def _leave_accumulation_to_the_state(self, model: wire.WireModel) -> None:
        gradients = self.signature.output_names(Role.GRADIENT)
        if not gradients:
            return
        model.nodes = [node for node in model.nodes if not node.name.startswith(_ACCUMULATE)]
        for name in self.signature.input_names(Role.GRADIENT, Role.RESET):
            model.inputs.pop(name, None)
        kept = [name for name in model.outputs if name not in set(gradients)]
        model.set_outputs([*kept, *(gradient_name(self.signature.links[name]) for name in self.gradients)])
        if len(self.gradients) < len(gradients):
            model.prune()

    def run(
        self,
        inputs: Sequence[UserInput],
        destinations: Destinations | None = None,
        others: Mapping[str, onnxruntime.OrtValue] | None = None,
    ) -> list[Output]:
        """Run once, with the inputs of the user in order; returns the outputs of the user.

        `destinations` says which tensors other outputs become, and is bound again only when it is another mapping;
        `others` gives inputs that are neither the user's nor parameters. Any number of threads may be here at once, as
        long as they do not write to the same destinations.
        """
        bound = self._current()
        feeds = self._feeds(bound, inputs)
        if any(0 in shape_of_value(value) for value in feeds.values()):
            # Products that onnxruntime has fused with a transposition end the process if there is nothing in them.
            bound = self._current(as_written=True)
        try:
            return bound.run(feeds, destinations or _NONE, others or {})
        except Exception as error:  # onnxruntime's exceptions have no common base but this
            raise OnwardError(explain(str(error).strip(), self.path.name, feeds, self._targets, self._rules)) from error

    def _current(self, *, as_written: bool = False) -> BoundSession:
        """The session over the state as it is now."""
        self._state.require_values()
        with self._opening:
            if self._bound and self._version != self._state.version:
                if self.fixed:
                    raise OnwardError(
                        f"a frozen parameter was changed, but {str(self.path)!r} is in onnxruntime's own format, where "
                        "frozen parameters are constants; use the .onnx file"
                    )
                self._bound.clear()
            if as_written not in self._bound:
                self._open(read_model(self.source, "model file"), as_written=as_written)
            return self._bound[as_written]

    def _feeds(self, bound: BoundSession, inputs: Sequence[UserInput]) -> dict[str, UserInput]:
        if len(inputs) != len(self.user_inputs):
            raise OnwardError(
                f"{self.path.name!r} takes {len(self.user_inputs)} inputs ({', '.join(self.user_inputs)}), but "
                f"{len(inputs)} were given"
            )
        feeds = {}
        for name, value in zip(self.user_inputs, inputs, strict=True):
            if name in bound.inputs:  # a target that nothing uses is not an input of the session
                feeds[name] = checked_input(bound.inputs[name], self._declared(bound, name), value)
        shapes = {name: shape_of_value(value) for name, value in feeds.items()}
        check_targets(shapes, {name: self._declared(bound, name) for name in feeds}, self._targets)
        return feeds

    def _declared(self, bound: BoundSession, name: str) -> Sequence[Any] | None:
        """The shape of an input, with names for sizes that change; None if nothing is said. (onnxruntime says [].)"""
        shape: Sequence[Any] = bound.inputs[name].shape
        return None if not shape and (self.fixed or self._types.get(name) is None) else shape


def gradient_name(parameter: str) -> str:
    """What the gradient of a parameter is called inside a training graph."""
    return f"{parameter}_grad"


def _numbers(shape: Any) -> Any:
    return None if shape is None else tuple(shape)

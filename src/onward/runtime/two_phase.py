"""Run a forward and a backward graph one after the other, with what the first keeps for the second in between.

Activations stay where they were computed. Any number of forward passes may be under way; each has a state of its own,
which one backward pass consumes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from onward.errors import OnwardError
from onward.runtime import wire
from onward.runtime.bound import UserInput
from onward.runtime.device import Device, choose
from onward.runtime.inputs import checked_input
from onward.runtime.refusal import explain
from onward.runtime.session import NUMPY_TYPES, open_session
from onward.runtime.tensorfile import numpy_dtype
from onward.runtime.tensors import value_of
from onward.signature import CHECK, METADATA_KEY, Role, Signature

Values = dict[str, onnxruntime.OrtValue]


@dataclass
class PhaseState:
    """What one forward pass has left for its backward pass."""

    values: dict[str, UserInput] | None  # activations, inputs and parameters; None once they are used
    outputs: dict[str, tuple[list[int], str]]  # shape and type of each output that has a gradient


@dataclass(frozen=True)
class ForwardResult:
    """What a forward pass gives."""

    outputs: Values  # of the model, in its order
    statistics: Values  # the new value of each running statistic, by the name of the input that it replaces
    state: PhaseState


class TwoPhases:
    """A pair of graphs that `onward.training.phases` has made, as serialized models.

    Backward passes read inputs and parameters where they are: these must not change between the two passes. Any number
    of threads may run either. `folder` is where models find their external data, if they have any.
    """

    def __init__(
        self,
        forward: bytes,
        backward: bytes,
        *,
        device: str = "cpu",
        options: onnxruntime.SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        self.device, used = choose(device, providers)
        self._forward = _Graph(forward, "forward", self.device, options, used, folder)
        self._backward = _Graph(backward, "backward", self.device, options, used, folder)
        first, second = self._forward.signature, self._backward.signature
        self.inputs = list(first.inputs)
        self.outputs = first.output_names(Role.OUTPUT)
        self._statistics = {name: first.links[name] for name in first.output_names(Role.BUFFER)}
        # Output of the model -> its gradient, an input of the backward graph.
        self.output_gradients = {second.links[name]: name for name in second.input_names(Role.GRADIENT)}
        # Input or parameter -> its gradient, an output of the backward graph.
        self.gradients = {second.links[name]: name for name in second.output_names(Role.GRADIENT)}
        # What a state holds: all else that the backward graph takes.
        self._kept = [name for name, role in second.inputs.items() if role is not Role.GRADIENT]
        missing = [name for name in self._kept if name not in first.inputs and name not in first.outputs]
        if missing:
            raise OnwardError(
                f"the backward graph takes {missing[0]!r}, which the forward graph neither takes nor returns; they "
                "were not made together"
            )

    def forward(self, feeds: Mapping[str, UserInput]) -> ForwardResult:
        """Run the forward graph over all of its inputs, parameters and running statistics among them."""
        given = self._forward.checked(feeds)
        found = self._forward.run(given)
        outputs = {name: found[name] for name in self.outputs}
        state = PhaseState(
            {name: given[name] if name in given else found[name] for name in self._kept},
            {name: (outputs[name].shape(), outputs[name].data_type()) for name in self.output_gradients},
        )
        return ForwardResult(outputs, {old: found[new] for new, old in self._statistics.items()}, state)

    def backward(self, state: PhaseState, gradients: Mapping[str, UserInput | None]) -> Values:
        """The gradient of each input and parameter that has one, by its name.

        Args:
            state: of a forward pass; its activations are released, so it serves one backward pass.
            gradients: those of outputs, by the names of the outputs; zeros for what is left out or None.
        """
        unknown = [name for name in gradients if name not in self.outputs]
        if unknown:
            raise OnwardError(f"there is no output {unknown[0]!r}; the model has {', '.join(self.outputs)}")
        if state.values is None:
            raise OnwardError(
                "the state of this forward pass is used up: a backward pass releases its activations. Run the forward "
                "pass again."
            )
        feeds: dict[str, UserInput] = {}
        for output, name in self.output_gradients.items():
            shape, kind = state.outputs[output]
            given = gradients.get(output)
            feeds[name] = self._zeros(shape, kind) if given is None else given
        checked = self._backward.checked(feeds)
        for output, name in self.output_gradients.items():
            shape, given = state.outputs[output][0], checked[name].shape()
            if list(given) != list(shape):
                raise OnwardError(f"the gradient of output {output!r} must have its shape {shape}, not {given}")
        values, state.values = state.values, None
        found = self._backward.run({**checked, **values})
        return {target: found[name] for target, name in self.gradients.items()}

    def _zeros(self, shape: Sequence[int], kind: str) -> onnxruntime.OrtValue:
        dtype = NUMPY_TYPES[kind] if kind in NUMPY_TYPES else numpy_dtype("bfloat16")
        return _on(self.device, np.zeros(shape, dtype))


class _Graph:
    """One of the two models; what it returns stays on the device."""

    def __init__(
        self,
        content: bytes,
        kind: str,
        device: Device,
        options: onnxruntime.SessionOptions | None,
        providers: list[Any],
        folder: str | os.PathLike[str] | None,
    ) -> None:
        model = wire.parse(content)
        self._folder = folder if folder is not None and model.check_files(Path(folder)) else None
        text = model.metadata.get(METADATA_KEY)
        self.signature = Signature(kind, {}, {}) if text is None else Signature.from_json(text)
        if text is None or self.signature.kind != kind:
            raise OnwardError(f"this is not the {kind} graph of a pair that onward.training.phases has made")
        self._kind, self._content, self._device = kind, content, device
        self._options, self._providers = options, providers
        self._declared = {name: (model.type_of(name) or (0, None))[1] for name in model.inputs}
        self._rules = [node.name for node in model.nodes if node.name.startswith(CHECK)]
        self._sessions: dict[bool, onnxruntime.InferenceSession] = {}  # whether as written
        self._opening = threading.Lock()
        self._types = {value.name: value for value in self._session(as_written=False).get_inputs()}

    def _session(self, *, as_written: bool) -> onnxruntime.InferenceSession:
        with self._opening:
            if as_written not in self._sessions:
                self._sessions[as_written] = open_session(
                    self._content,
                    folder=self._folder,
                    options=self._options,
                    providers=self._providers,
                    as_written=as_written,
                )
            return self._sessions[as_written]

    def checked(self, feeds: Mapping[str, UserInput]) -> dict[str, UserInput]:
        """What is fed, but for activations, as tensors of onnxruntime on the device; texts stay arrays."""
        roles = self.signature.inputs
        wanted = [name for name, role in roles.items() if role is Role.GRADIENT or self._kind == "forward"]
        missing, unknown = [name for name in wanted if name not in feeds], [name for name in feeds if name not in roles]
        if missing or unknown:
            what = f"{missing[0]!r} is missing" if missing else f"{unknown[0]!r} is none of them"
            raise OnwardError(f"the {self._kind} graph takes {', '.join(wanted)}; {what}")
        found = {}
        for name in wanted:
            if name not in self._types:
                continue
            shape = None if self._declared[name] is None else self._types[name].shape
            value = checked_input(self._types[name], shape, feeds[name])
            is_text = isinstance(value, np.ndarray) and value.dtype.kind in "OU"
            found[name] = _on(self._device, value) if isinstance(value, np.ndarray) and not is_text else value
        return found

    def run(self, feeds: Mapping[str, UserInput]) -> Values:
        """All outputs, by name."""
        # Products that onnxruntime has fused with a transposition end the process if there is nothing in them.
        session = self._session(as_written=any(_is_empty(value) for value in feeds.values()))
        try:
            return self._run(session, {name: value for name, value in feeds.items() if name in self._types})
        except Exception as error:  # onnxruntime's exceptions have no common base but this
            own = (Role.INPUT, Role.GRADIENT)
            shown = {name: feeds[name] for name in self.signature.input_names(*own) if _is_readable(feeds.get(name))}
            raise OnwardError(explain(str(error).strip(), self._kind, shown, (), self._rules)) from error

    def _run(self, session: onnxruntime.InferenceSession, feeds: Mapping[str, UserInput]) -> Values:
        names = list(self.signature.outputs)
        if any(isinstance(value, np.ndarray) for value in feeds.values()):  # texts cannot be bound
            return {
                name: _on(self._device, array) for name, array in zip(names, session.run(names, feeds), strict=True)
            }
        io = session.io_binding()  # each time: one that is used again would keep what was bound to it
        for name, value in feeds.items():
            io.bind_ortvalue_input(name, value)
        for name in names:
            io.bind_output(name, self._device.ort_name, self._device.index)
        session.run_with_iobinding(io)
        return dict(zip(names, io.get_outputs(), strict=True))


def _on(device: Device, array: np.ndarray) -> onnxruntime.OrtValue:
    """An array on a device; in main memory, the same memory, which the result keeps alive."""
    if device.is_host or array.dtype.name == "bfloat16":
        return value_of(array)
    return onnxruntime.OrtValue.ortvalue_from_numpy(array, device.ort_name, device.index)


def _is_empty(value: UserInput) -> bool:
    if isinstance(value, np.ndarray):
        return 0 in value.shape
    return bool(value.is_tensor()) and 0 in value.shape()


def _is_readable(value: UserInput) -> bool:
    """Whether an error can describe a value."""
    return isinstance(value, np.ndarray) or (
        value is not None and value.is_tensor() and value.data_type() != "tensor(bfloat16)"
    )

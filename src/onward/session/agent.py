"""Forward and backward passes, driven from outside: the original's TrainingAgent."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime

from onward.errors import OnwardError, UnknownNameError
from onward.graph.naming import quoted
from onward.runtime import wire
from onward.runtime.inputs import as_value
from onward.runtime.two_phase import PhaseState, TwoPhases
from onward.session.pair import read_pair
from onward.signature import METADATA_KEY, Role, Signature

Vector = Any  # onnxruntime's OrtValueVector, or a sequence of OrtValues or arrays


class PartialGraphExecutionState:
    """What a forward pass leaves for its backward pass: one for each that is under way."""

    def __init__(self) -> None:
        self._phase: PhaseState | None = None


class OrtValueCache:
    """Values by name. The original kept Casts of parameters in it, which are not worth it here: it stays empty."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def insert(self, name: str, value: Any) -> None:
        self._values[name] = value

    def keys(self) -> list[str]:
        return list(self._values)

    def clear(self) -> None:
        self._values.clear()

    def count(self, name: str) -> int:
        return int(name in self._values)

    def remove(self, name: str) -> None:
        if name not in self._values:
            raise OnwardError(f"NodeArg not found in cache: {name}; it has {quoted(self._values) or 'nothing'}")
        del self._values[name]


class TrainingAgent:
    """Runs the two parts of a gradient model.

    Args:
        session: of `OrtModuleGraphBuilder.get_gradient_model()`; its native one (``session._sess``) or itself.
        fw_feed_names: what the vectors given to `run_forward` hold: the inputs of the model, then parameters.
        fw_outputs_device_info: accepted; results are where the session computes.
        bw_fetches_names: the gradients that `run_backward` returns.
        bw_outputs_device_info: accepted, likewise.
        local_rank: accepted, without effect.

    Running statistics of BatchNormalization are updated by each forward pass: in place where they are fed, else inside
    of the agent (`statistics`). What the model draws at random follows from `seed` and the number of the pass.
    """

    def __init__(
        self,
        session: Any,
        fw_feed_names: Sequence[str],
        fw_outputs_device_info: Sequence[Any],
        bw_fetches_names: Sequence[str],
        bw_outputs_device_info: Sequence[Any],
        local_rank: int = 0,
    ) -> None:
        del fw_outputs_device_info, bw_outputs_device_info, local_rank
        native = getattr(session, "_sess", session)
        pair = read_pair(dict(native.model_meta.custom_metadata_map))
        options = native.get_provider_options()
        providers = [(name, options[name]) if options.get(name) else name for name in native.get_providers()]
        settings = native.session_options  # a copy
        settings.optimized_model_filepath = ""  # that of the gradient model is written there
        self._phases = TwoPhases(pair.forward, pair.backward, options=settings, providers=providers)
        self._feed_names, self._fetches = list(fw_feed_names), list(bw_fetches_names)
        self._stored: dict[str, Any] = dict(pair.stored)
        signature = Signature.from_json(wire.parse(pair.forward).metadata[METADATA_KEY])
        self._statistics = signature.input_names(Role.BUFFER)
        self._seeds, self._passes = signature.input_names(Role.SEED), signature.input_names(Role.PASS)
        self._seed, self._pass, self._counting = 0, 0, threading.Lock()
        self._check_names()

    def _check_names(self) -> None:
        own = {*self._stored, *self._seeds, *self._passes}
        wanted = [name for name in self._phases.inputs if name not in own]
        if sorted(self._feed_names) != sorted(wanted):
            raise UnknownNameError(
                f"fw_feed_names must be {quoted(wanted)}, in any order, and not {quoted(self._feed_names)}"
            )
        gradients = list(self._phases.gradients.values())
        unknown = [name for name in self._fetches if name not in gradients]
        if unknown:
            raise UnknownNameError(
                f"bw_fetches_names has {quoted(unknown)}, which the gradient model does not return; it returns "
                f"{quoted(gradients)}"
            )

    @property
    def statistics(self) -> dict[str, np.ndarray]:
        """The running statistics that are not fed."""
        found = {name: self._stored[name] for name in self._statistics if name in self._stored}
        return {name: np.array(v.numpy() if hasattr(v, "numpy") else v) for name, v in found.items()}

    def seed(self, seed: int) -> None:
        """Let random operators draw from another seed, from the beginning."""
        with self._counting:
            self._seed, self._pass = int(seed), 0

    def run_forward(
        self, feeds: Vector, fetches: Vector, state: PartialGraphExecutionState, cache: OrtValueCache | None = None
    ) -> None:
        """Run the forward pass; the outputs of the model are put into `fetches`."""
        del cache
        given = _listed(feeds, "forward", len(self._feed_names), self._feed_names)
        values = dict(zip(self._feed_names, given, strict=True))
        try:
            result = self._phases.forward({**self._stored, **self._drawn(), **values})
        except OnwardError as error:
            raise type(error)(f"Error in forward pass execution: {error}") from error
        for name, statistic in result.statistics.items():
            if name in values:
                as_value(values[name]).update_inplace(statistic.numpy())
            else:
                self._stored[name] = statistic
        state._phase = result.state
        held = result.state.values or {}
        # What the backward pass reads must not be in the hands of the caller, who may have it written over.
        outputs = [_copy(value) if name in held else value for name, value in result.outputs.items()]
        _fill(fetches, outputs, "forward")

    def run_backward(self, feeds: Vector, fetches: Vector, state: PartialGraphExecutionState) -> None:
        """Run the backward pass over the gradients of the outputs that have one; gradients are put into `fetches`."""
        outputs = list(self._phases.output_gradients)
        if state._phase is None:
            raise OnwardError("Error in backward pass execution: no forward pass has been run with this state")
        given = _listed(feeds, "backward", len(outputs), [f"the gradient of {name}" for name in outputs])
        try:
            found = self._phases.backward(state._phase, dict(zip(outputs, given, strict=True)))
        except OnwardError as error:
            raise type(error)(f"Error in backward pass execution: {error}") from error
        by_name = {self._phases.gradients[target]: value for target, value in found.items()}
        _fill(fetches, [by_name[name] for name in self._fetches], "backward")

    def _drawn(self) -> dict[str, np.ndarray]:
        with self._counting:
            number = self._pass
            self._pass += bool(self._passes)
            return dict.fromkeys(self._seeds, np.array(self._seed)) | dict.fromkeys(self._passes, np.array(number))


def _copy(value: onnxruntime.OrtValue) -> onnxruntime.OrtValue:
    place = value.device_name().lower()
    copied = onnxruntime.OrtValue.ortvalue_from_numpy(np.array(value.numpy()), place)
    # In memory of its own: what goes into a native vector does not keep an array alive.
    own = onnxruntime.OrtValue.ortvalue_from_shape_and_type(value.shape(), copied.numpy().dtype, place)
    own.update_inplace(copied.numpy())
    return own


def _listed(vector: Vector, phase: str, count: int, names: Sequence[str]) -> list[Any]:
    """The values of a vector, by index: iterators of native vectors do not keep it alive."""
    if len(vector) != count:
        raise OnwardError(
            f"Error in {phase} pass execution: {len(vector)} values were given, but {count} are needed: "
            f"{', '.join(names)}"
        )
    return [vector[index] for index in range(count)]


def _fill(vector: Vector, values: Sequence[onnxruntime.OrtValue], phase: str) -> None:
    """Append values to an empty vector; one that is full from another run gets them in the same memory."""
    if not len(vector):
        for value in values:
            if isinstance(vector, list):
                vector.append(value)
            else:
                vector.push_back(value._ortvalue)
        return
    if len(vector) != len(values):
        raise OnwardError(
            f"Error in {phase} pass execution: the vector for results holds {len(vector)} values, but there are "
            f"{len(values)}; give an empty one"
        )
    for index, value in enumerate(values):
        target = as_value(vector[index])
        if list(target.shape()) != list(value.shape()):
            raise OnwardError(
                f"Error in {phase} pass execution: result {index} has shape {value.shape()}, but the value to write it "
                f"to has {target.shape()}; give an empty vector"
            )
        target.update_inplace(np.ascontiguousarray(value.numpy()))

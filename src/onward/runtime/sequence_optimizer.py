"""Optimizer models of any origin, run as they are: slower, because every tensor is copied in and out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime

from onward.errors import InvalidModelError, OnwardError
from onward.plan import METADATA_KEY, SlotPlan, UpdatePlan
from onward.runtime.optimizer import Steps, Trained, TrainingOptimizer
from onward.runtime.session import NUMPY_TYPES, metadata_of, open_session, read_model
from onward.runtime.state import DEFAULT_LEARNING_RATE
from onward.runtime.tensors import FlatTensors

# What onnxruntime-training calls the inputs of optimizer models.
_RATE, _STEP, _PARAMETERS, _GRADIENTS = "learning_rate", "step", "params", "gradients"
_UPDATED = "updated_"


def open_optimizer(
    path: str | os.PathLike[str],
    module: Trained,
    *,
    options: onnxruntime.SessionOptions | None = None,
    providers: Sequence[Any] = ("CPUExecutionProvider",),
) -> Steps:
    """The optimizer of a model file: by its update plan if it has one, else by running the model itself."""
    content = read_model(path, "optimizer model")
    metadata = metadata_of(content)
    if METADATA_KEY in metadata:
        plan = UpdatePlan.from_json(metadata[METADATA_KEY])
        return TrainingOptimizer(plan, module, options=options, providers=providers)
    try:
        session = open_session(content, options=options, providers=providers)
    except InvalidModelError as error:
        raise OnwardError(
            f"{str(path)!r} has no update plan of onward, and onnxruntime cannot run it. Generate it with "
            "onward.artifacts.generate_artifacts(..., optimizer=...); optimizer models of onnxruntime-training need "
            f"that package's operators. ({error})"
        ) from error
    return SequenceOptimizer(str(path), session, module)


class SequenceOptimizer(Steps):
    """An optimizer model with the inputs and outputs that those of onnxruntime-training have.

    Inputs: the sequences `params` and `gradients`, in the order of the checkpoint; `learning_rate` and `step` (from 1),
    where it wants them; all other sequences are slots, which begin as zeros. Outputs: `updated_params` and
    `updated_<slot>`, or the same in this order under any names; others are not looked at.
    """

    def __init__(self, path: str, session: onnxruntime.InferenceSession, module: Trained) -> None:
        self._path, self._session = path, session
        inputs = {value.name: value for value in session.get_inputs()}
        sequences = [name for name, value in inputs.items() if value.type.startswith("seq(")]
        scalars = [name for name in inputs if name not in sequences]
        if not {_PARAMETERS, _GRADIENTS} <= set(sequences) or not set(scalars) <= {_RATE, _STEP}:
            raise OnwardError(
                f"{path!r} has no update plan of onward, and its inputs ({', '.join(inputs)}) are not those of an "
                f"optimizer model: the sequences {_PARAMETERS} and {_GRADIENTS}, a sequence for each kind of optimizer "
                f"state, and {_RATE} and {_STEP} where they are needed"
            )
        self._slots = [name for name in sequences if name not in (_PARAMETERS, _GRADIENTS)]
        self._scalars = {name: _zeros(inputs[name]) for name in scalars}
        self._results = self._find_results()
        name = session.get_modelmeta().graph_name or "custom"
        slots = {slot: SlotPlan(initial=0.0, scale=1.0) for slot in self._slots}
        super().__init__(UpdatePlan(name, DEFAULT_LEARNING_RATE, False, slots, ()), module)

    def _find_results(self) -> list[str]:
        """The outputs that replace the parameters and each slot."""
        outputs = [value.name for value in self._session.get_outputs() if value.type.startswith("seq(")]
        named = [f"{_UPDATED}{name}" for name in (_PARAMETERS, *self._slots)]
        if set(named) <= set(outputs):
            return named
        if len(outputs) == len(named):
            return outputs
        raise OnwardError(
            f"{self._path!r} should have the sequences {', '.join(named)} as outputs, but it has "
            f"{', '.join(outputs) or 'no sequences'}"
        )

    def _update(self, gradients: FlatTensors) -> None:
        self._prepare_slots()
        state, names = self.state, list(self._state.trainable)
        targets = [self._state.trainable, *(state.slots[slot] for slot in self._slots)]
        feeds: dict[str, Any] = {_GRADIENTS: [gradients[name] for name in names]}
        for name, tensors in zip((_PARAMETERS, *self._slots), targets, strict=True):
            feeds[name] = [tensors[key] for key in names]
        for name, value in ((_RATE, state.learning_rate), (_STEP, state.step + 1)):
            if name in self._scalars:
                self._scalars[name][...] = value
        try:
            results = self._session.run(self._results, {**feeds, **self._scalars})
        except Exception as error:  # onnxruntime's exceptions have no common base but this
            raise OnwardError(f"onnxruntime could not run {self._path!r}: {str(error).strip()}") from error
        for output, arrays, tensors in zip(self._results, results, targets, strict=True):
            self._check(output, arrays, tensors)
        for arrays, tensors in zip(results, targets, strict=True):
            for name, array in zip(names, arrays, strict=True):
                tensors.assign(name, array)

    def _check(self, output: str, arrays: Sequence[np.ndarray], tensors: FlatTensors) -> None:
        """Refuse results of which it is not clear what they belong to, before anything is changed."""
        if len(arrays) != len(tensors):
            raise OnwardError(f"{output!r} of {self._path!r} has {len(arrays)} tensors, not {len(tensors)}")
        for (name, (shape, dtype)), array in zip(tensors.layout.items(), arrays, strict=True):
            if array.shape != shape or array.dtype != dtype:
                raise OnwardError(
                    f"{output!r} of {self._path!r} has {array.dtype} {list(array.shape)} in the place of {name!r}, "
                    f"which is {dtype} {list(shape)}"
                )


def _zeros(value: Any) -> np.ndarray:
    """A scalar, or a tensor with one element, as an input wants it."""
    return np.zeros([1] * len(value.shape or ()), NUMPY_TYPES[value.type])

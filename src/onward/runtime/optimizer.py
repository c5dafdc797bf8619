"""Applies an optimizer to the tensors of a state: small graphs over flat chunks, in place."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from onward.errors import OnwardError
from onward.plan import (
    COEFFICIENT,
    GRAD_SCALE,
    GRADIENT,
    LEARNING_RATE,
    METADATA_KEY,
    PARAMETER,
    SLOT,
    STEP,
    UPDATED,
    Kernel,
    UpdatePlan,
)
from onward.runtime import wire
from onward.runtime.session import open_session
from onward.runtime.state import OptimizerState, State
from onward.runtime.tensors import ROW, FlatTensors

# An optimizer is a dozen passes over memory; in chunks of this many elements they run in the cache.
_CHUNK = 2**18

Chunk = tuple[np.dtype, int, int]  # of the buffer of that dtype, from, to


def read_plan(path: str | os.PathLike[str]) -> UpdatePlan:
    """The update plan of an optimizer model."""
    if not Path(path).is_file():
        raise OnwardError(f"there is no optimizer model at {str(path)!r}")
    metadata = wire.parse(Path(path).read_bytes()).metadata
    if METADATA_KEY not in metadata:
        raise OnwardError(
            f"{str(path)!r} has no update plan of onward. Generate it with onward.artifacts.generate_artifacts(..., "
            "optimizer=...); optimizer models of onnxruntime-training need that package's operators."
        )
    return UpdatePlan.from_json(metadata[METADATA_KEY])


class TrainingOptimizer:
    """Steps of one optimizer over one state."""

    def __init__(
        self,
        plan: UpdatePlan,
        state: State,
        *,
        options: onnxruntime.SessionOptions | None = None,
        providers: Sequence[Any] = ("CPUExecutionProvider",),
    ) -> None:
        planned = {name for kernel in plan.kernels for name in kernel.parameters}
        if planned != set(state.trainable):
            raise OnwardError(
                f"the optimizer updates {_listed(planned)}, but the checkpoint has the trainable parameters "
                f"{_listed(state.trainable)}; they were not generated together"
            )
        self.plan, self._state = plan, state
        self._options, self._providers = options, providers
        self._rate, self._step = np.zeros((), np.float32), np.zeros((), np.int64)
        self._scale = np.ones((), np.float32)
        self._scalars = {
            LEARNING_RATE: onnxruntime.OrtValue.ortvalue_from_numpy(self._rate),
            STEP: onnxruntime.OrtValue.ortvalue_from_numpy(self._step),
            GRAD_SCALE: onnxruntime.OrtValue.ortvalue_from_numpy(self._scale),
        }
        self._bound_to: FlatTensors | None = None
        self._runs: list[tuple[onnxruntime.InferenceSession, Any]] = []
        self._norm: tuple[onnxruntime.InferenceSession, Any] | None = None
        state.optimizer = _matching_state(plan, state)

    @property
    def state(self) -> OptimizerState:
        assert self._state.optimizer is not None
        return self._state.optimizer

    def step(self) -> None:
        """Update the parameters from the gradients."""
        if self._state.gradients is None:
            raise OnwardError("there are no gradients yet: create a module for this state and run a training step")
        if self._bound_to is not self._state.gradients:
            self._bind(self._state.gradients)
        state = self.state
        self._rate[...] = state.learning_rate
        self._step[...] = state.step + 1
        if self._norm is not None:
            session, binding = self._norm
            session.run_with_iobinding(binding)
        for session, binding in self._runs:
            session.run_with_iobinding(binding)
        state.step += 1

    def _bind(self, gradients: FlatTensors) -> None:
        self._runs = []
        for kernel in self.plan.kernels:
            session = open_session(kernel.model, options=self._options, providers=self._providers)
            wanted = {value.name for value in session.get_inputs()}
            for chunk in self._chunks(kernel):
                self._runs.append((session, self._bind_chunk(session, wanted, chunk, gradients)))
        if self.plan.norm is not None:
            session = open_session(self.plan.norm, options=self._options, providers=self._providers)
            binding = session.io_binding()
            for value in session.get_inputs():
                dtype = list(gradients.buffers)[int(value.name.rpartition(":")[2])]
                rows = gradients.buffers[dtype].reshape(-1, ROW)
                binding.bind_ortvalue_input(value.name, onnxruntime.OrtValue.ortvalue_from_numpy(rows))
            binding.bind_ortvalue_output(COEFFICIENT, self._scalars[GRAD_SCALE])
            self._norm = (session, binding)
        self._bound_to = gradients

    def _bind_chunk(
        self, session: onnxruntime.InferenceSession, wanted: set[str], chunk: Chunk, gradients: FlatTensors
    ) -> Any:
        def view(tensors: FlatTensors) -> onnxruntime.OrtValue:
            dtype, start, end = chunk
            return onnxruntime.OrtValue.ortvalue_from_numpy(tensors.buffers[dtype][start:end])

        binding = session.io_binding()
        tensors = {PARAMETER: self._state.trainable, **{f"{SLOT}{n}": t for n, t in self.state.slots.items()}}
        for name, tensor in tensors.items():
            # In place: each element is read before it is written, and nothing else reads it afterwards.
            value = view(tensor)
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(f"{name}{UPDATED}", value)
        if GRADIENT in wanted:
            binding.bind_ortvalue_input(GRADIENT, view(gradients))
        for name, scalar in self._scalars.items():
            if name in wanted:
                binding.bind_ortvalue_input(name, scalar)
        return binding

    def _chunks(self, kernel: Kernel) -> Iterator[Chunk]:
        """The parts of the buffers that a kernel updates, one run each."""
        tensors = self._state.trainable
        if not self.plan.elementwise:
            for name in kernel.parameters:
                shape, dtype = tensors.layout[name]
                start = tensors.offsets[name]
                yield dtype, start, start + math.prod(shape)
            return
        members = set(kernel.parameters)
        for dtype, start, end in tensors.runs(members):
            for begin in range(start, end, _CHUNK):
                yield dtype, begin, min(begin + _CHUNK, end)


def _matching_state(plan: UpdatePlan, state: State) -> OptimizerState:
    """The optimizer state of a checkpoint, checked, or a fresh one."""
    found = state.optimizer
    if found is None:
        found = OptimizerState(learning_rate=plan.learning_rate, initial_learning_rate=plan.learning_rate)
    if not found.slots:
        found.slots = {name: _filled(state.trainable, slot.initial) for name, slot in plan.slots.items()}
        return found
    if set(found.slots) != set(plan.slots):
        raise OnwardError(
            f"the checkpoint holds optimizer state {sorted(found.slots)}, but optimizer {plan.optimizer!r} needs "
            f"{sorted(plan.slots)}: it was saved by another optimizer"
        )
    for slot in found.slots.values():
        missing = [name for name in state.trainable if name not in slot]
        if missing:
            raise OnwardError(f"Parameter {missing[0]} not found in the source optimizer checkpoint states.")
    return found


def _filled(like: FlatTensors, value: float) -> FlatTensors:
    tensors = like.zeros_like()
    if value:
        for name in tensors:
            tensors[name][...] = value
    return tensors


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "nothing"

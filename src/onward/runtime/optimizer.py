"""Applies an optimizer to the tensors of a state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from operator import is_not
from typing import Any, Protocol

import numpy as np
import onnxruntime

from onward.errors import OnwardError
from onward.plan import GRAD_SCALE, GRADIENT, LEARNING_RATE, PARAMETER, SLOT, STEP, UpdatePlan
from onward.runtime.access import Access
from onward.runtime.finite import check_clipping
from onward.runtime.kernels import Binder, Run
from onward.runtime.state import OptimizerState, State
from onward.runtime.tensors import FlatTensors


class Trained(Protocol):
    """What an optimizer belongs to: a module, in short."""

    @property
    def state(self) -> State: ...

    @property
    def gradients(self) -> FlatTensors: ...


class Steps(ABC):
    """Steps of one optimizer, from the gradients of one module.

    A state has one optimizer state, and so has a checkpoint: optimizers of modules that share a state share the slots,
    the number of steps and the learning rate.
    """

    def __init__(self, plan: UpdatePlan, module: Trained) -> None:
        self.plan, self._module, self._state = plan, module, module.state
        with self.access.exclusive():
            if self._state.optimizer is None:
                rate = plan.learning_rate
                self._state.optimizer = OptimizerState(learning_rate=rate, initial_learning_rate=rate)
            if not self._state.nominal:
                _match(plan, self._state)

    @property
    def access(self) -> Access:
        return self._state.access

    @property
    def state(self) -> OptimizerState:
        assert self._state.optimizer is not None
        return self._state.optimizer

    def step(self) -> None:
        """Update the parameters from the gradients of the module."""
        with self.access.exclusive():
            self._update(self._module.gradients)
            self.state.step += 1

    def adopt(self) -> None:
        """See that the optimizer state of a state that has changed is that of this optimizer."""
        with self.access.exclusive():
            if self._state.optimizer is None:
                rate = self.plan.learning_rate
                self._state.optimizer = OptimizerState(learning_rate=rate, initial_learning_rate=rate)
            self._prepare_slots()

    @abstractmethod
    def _update(self, gradients: FlatTensors) -> None:
        """Change the parameters and the slots of the state."""

    def _prepare_slots(self) -> None:
        """See that there are slots: a state that was nominal has none yet."""
        _match(self.plan, self._state)


class TrainingOptimizer(Steps):
    """An optimizer of onward: small graphs over flat chunks, in place."""

    def __init__(
        self,
        plan: UpdatePlan,
        module: Trained,
        *,
        options: onnxruntime.SessionOptions | None = None,
        providers: Sequence[Any] = ("CPUExecutionProvider",),
    ) -> None:
        planned = {name for kernel in plan.kernels for name in kernel.parameters}
        trainable = module.state.trainable_names
        if planned != set(trainable):
            raise OnwardError(
                f"the optimizer updates {_listed(planned)}, but the checkpoint has the trainable parameters "
                f"{_listed(trainable)}; they were not generated together"
            )
        super().__init__(plan, module)
        self._options, self._providers = options, providers
        self._rate, self._step = np.zeros((), np.float32), np.zeros((), np.int64)
        self._scale = np.ones((), np.float32)
        self._scalars = {
            LEARNING_RATE: onnxruntime.OrtValue.ortvalue_from_numpy(self._rate),
            STEP: onnxruntime.OrtValue.ortvalue_from_numpy(self._step),
            GRAD_SCALE: onnxruntime.OrtValue.ortvalue_from_numpy(self._scale),
        }
        self._bound_to: list[FlatTensors] = []
        self._runs: list[Run] = []

    def _update(self, gradients: FlatTensors) -> None:
        bound = [self._state.trainable, gradients, *self.state.slots.values()]
        if len(bound) != len(self._bound_to) or any(map(is_not, bound, self._bound_to)):
            self._bind(gradients)
        self._rate[...] = self.state.learning_rate
        self._step[...] = self.state.step + 1
        try:
            for run in self._runs:
                run()
        except Exception as error:  # onnxruntime's exceptions have no common base but this
            raise OnwardError(
                f"onnxruntime could not run optimizer {self.plan.optimizer!r}: its model is damaged, or made for other "
                f"parameters. They may be half updated; load the checkpoint again. ({str(error).strip()})"
            ) from error
        if self.plan.norm is not None:
            check_clipping(self._scale, gradients)

    def _bind(self, gradients: FlatTensors) -> None:
        self._prepare_slots()
        slots = {f"{SLOT}{name}": tensors for name, tensors in self.state.slots.items()}
        tensors = {PARAMETER: self._state.trainable, GRADIENT: gradients, **slots}
        self._runs = Binder(self.plan, tensors, self._scalars, self._options, self._providers).runs()
        self._bound_to = list(tensors.values())


def _match(plan: UpdatePlan, state: State) -> None:
    """Make the optimizer state of a checkpoint that of this optimizer, or start a new one."""
    found = state.optimizer
    assert found is not None
    found.scales = {name: slot.scale for name, slot in plan.slots.items()}
    if found.unnamed:
        found.slots, found.unnamed = _named(plan, found.slots), False
    if not found.slots and found.step == 0:
        found.slots = {name: _filled(state.trainable, slot.initial) for name, slot in plan.slots.items()}
    if set(found.slots) != set(plan.slots):
        raise OnwardError(
            f"the checkpoint holds the optimizer state {_listed(found.slots)}, but optimizer {plan.optimizer!r} needs "
            f"{_listed(plan.slots)}: it was saved by another optimizer, or another one was made for the same state"
        )
    # In the order of the plan and in the layout of the parameters, because kernels run over flat chunks of all of them.
    found.slots = {name: _laid_out(found.slots[name], state.trainable) for name in plan.slots}


def _named(plan: UpdatePlan, numbered: dict[str, FlatTensors]) -> dict[str, FlatTensors]:
    """Slots that another program has numbered: in the order of ours, where the textbook's quantity is scaled."""
    if not plan.slots:
        return {}  # onnxruntime-training keeps a momentum for SGD, which never uses it
    slots = {}
    for (name, slot), tensors in zip(plan.slots.items(), numbered.values(), strict=False):
        arrays = {key: array / array.dtype.type(slot.scale) for key, array in tensors.items()}
        slots[name] = FlatTensors.holding(arrays, tensors.device)
    return slots


def _laid_out(slot: FlatTensors, parameters: FlatTensors) -> FlatTensors:
    missing = [name for name in parameters if name not in slot]
    if missing:
        raise OnwardError(f"Parameter {missing[0]} not found in the source optimizer checkpoint states.")
    if slot.offsets == parameters.offsets and slot.layout == parameters.layout and slot.device == parameters.device:
        return slot
    for name, (shape, _) in parameters.layout.items():
        if slot.layout[name][0] != shape:
            raise OnwardError(
                f"the optimizer state of {name!r} has shape {list(slot.layout[name][0])}, but the parameter has "
                f"{list(shape)}"
            )
    tensors = parameters.zeros_like()
    for name in parameters:
        tensors.assign(name, slot[name])
    return tensors


def _filled(like: FlatTensors, value: float) -> FlatTensors:
    tensors = like.zeros_like()
    if value:
        tensors.fill(value)
    return tensors


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"

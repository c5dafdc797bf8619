"""Tensors that a module makes decisions by: if they are single numbers, each value may have graphs of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from onward.torch.ortmodule.call import Call, invoke
from onward.torch.ortmodule.rehearsal import shadow

_MOST_VALUES = 4  # a flag has two; something that counts is better left to torch


class FixedTensors:
    """Which tensors among the arguments of a module are seen as constants."""

    def __init__(self) -> None:
        self._fixed: set[Hashable] = set()
        self._hopeless: set[Hashable] = set()
        self._tried: dict[Hashable, int] = {}

    def __contains__(self, tensor: Hashable) -> bool:
        return tensor in self._fixed

    def __bool__(self) -> bool:
        return bool(self._fixed)

    def fix(self, module: nn.Module, signature: inspect.Signature, call: Call) -> bool:
        """Whether another export may go well where this one did not: single numbers are constants from now on."""
        if self._has(call):
            return self._give_up(call)
        found = call.fixable - self._hopeless
        if len(found) > 1:
            found = found & _read(module, signature, call) or found
        self._fixed |= found
        return bool(found)

    def has_too_many(self, call: Call) -> bool:
        """Whether yet another value is seen than are worth graphs of their own; the tensors are data from then on."""
        if not self._has(call):
            return False
        self._tried[call.tree] = self._tried.get(call.tree, 0) + 1
        return self._tried[call.tree] > _MOST_VALUES and self._give_up(call)

    def _has(self, call: Call) -> bool:
        return any((call.tree, place) in self._fixed for place in range(len(call.leaves)))

    def _give_up(self, call: Call) -> bool:
        own = {(call.tree, place) for place in range(len(call.leaves))} & self._fixed
        self._fixed -= own
        self._hopeless |= own
        return True


_READING = ("__bool__", "__int__", "__float__", "__index__", "item", "tolist")


class _Reading(TorchFunctionMode):
    """Notes which tensors Python reads."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[int] = set()
        self._functions = {getattr(torch.Tensor, name) for name in _READING}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in self._functions:
            self.read.add(args[0].data_ptr())
        return func(*args, **(kwargs or {}))


def _read(module: nn.Module, signature: inspect.Signature, call: Call) -> set[Hashable]:
    """The tensors among the arguments that a copy of the module reads, in whichever shape."""
    tensors = [tensor.detach().clone() for tensor in call.tensors]
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), _Reading() as reading:
            invoke(shadow(module), signature, call.with_tensors(tensors))
    except Exception:  # whatever the module raises without gradients
        return set()
    places = zip(call.places, tensors, strict=True)
    return {(call.tree, place) for place, tensor in places if tensor.data_ptr() in reading.read}

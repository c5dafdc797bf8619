"""Tensors that a module makes decisions by: if they are single numbers, each value may have graphs of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from onward.torch.ortmodule.call import Call, invoke, is_number
from onward.torch.ortmodule.rehearsal import shadow

_MOST_VALUES = 4  # a flag has two; something that counts is better left to torch


class FixedTensors:
    """Which tensors among the arguments of a module, and which of its buffers, are seen as constants.

    Attributes:
        flags: names of these buffers.
    """

    def __init__(self) -> None:
        self.flags: frozenset[str] = frozenset()
        self._fixed: set[Hashable] = set()
        self._hopeless: set[Hashable] = set()
        self._tried: dict[Hashable, int] = {}
        self._values: dict[str, set[bool | int | float]] = {}

    def __contains__(self, tensor: Hashable) -> bool:
        return tensor in self._fixed

    def __bool__(self) -> bool:
        return bool(self._fixed)

    def values(self, module: nn.Module) -> Hashable:
        """Those of the flags."""
        return tuple(module.get_buffer(name).item() for name in sorted(self.flags)) if self.flags else ()

    def fix(self, module: nn.Module, signature: inspect.Signature, call: Call) -> bool:
        """Whether another export may go well where this one did not: single numbers are constants from now on."""
        if self._has(call):
            return self._give_up(call)
        found = call.fixable - self._hopeless
        flags = {name for name, tensor in module.named_buffers() if is_number(tensor)} - self._hopeless - self.flags
        if len(found) > 1 or flags:
            read = _read(module, signature, call)
            flags &= read
            found = found & read or (set() if flags else found)
        self._fixed |= found
        self.flags |= {str(name) for name in flags}
        return bool(found or flags)

    def has_too_many(self, module: nn.Module, call: Call) -> bool:
        """Whether yet another value is seen than are worth graphs of their own; the tensors are data from then on."""
        for name in self.flags:
            self._values.setdefault(name, set()).add(module.get_buffer(name).item())
        counting = {name for name in self.flags if len(self._values[name]) > _MOST_VALUES}
        if counting:
            self.flags -= counting
            self._hopeless |= counting
            return True
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


_READING = ("__bool__", "__int__", "__float__", "__index__", "item", "tolist", "is_nonzero", "equal", "allclose")


class _Reading(TorchFunctionMode):
    """Notes which tensors Python reads, or numbers made of which.

    Attributes:
        read: what they are called in `sources`.
    """

    def __init__(self, sources: Mapping[Hashable, torch.Tensor]) -> None:
        super().__init__()
        self.read: set[Hashable] = set()
        self._functions = {getattr(torch.Tensor, name) for name in _READING} | {torch.equal, torch.allclose}
        self._sources = {id(tensor): {name} for name, tensor in sources.items()}
        self._kept: list[Any] = []  # so that no other tensor gets the id of one of them

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        leaves = pytree.tree_leaves((args, kwargs))
        sources = set().union(*(self._sources.get(id(leaf), ()) for leaf in leaves))
        found = func(*args, **(kwargs or {}))
        if sources and func in self._functions:
            self.read |= sources
        elif sources:
            for leaf in pytree.tree_leaves(found):
                if isinstance(leaf, torch.Tensor) and leaf.numel() == 1:
                    self._sources[id(leaf)] = sources
                    self._kept.append(leaf)
        return found


def _read(module: nn.Module, signature: inspect.Signature, call: Call) -> set[Hashable]:
    """The single numbers among the arguments and buffers that a copy of the module reads, in whichever shape."""
    tensors = [tensor.detach().clone() for tensor in call.tensors]
    copied = shadow(module)
    sources: dict[Hashable, torch.Tensor] = dict(copied.named_buffers())
    sources |= {(call.tree, place): tensor for place, tensor in zip(call.places, tensors, strict=True)}
    sources = {name: tensor for name, tensor in sources.items() if is_number(tensor)}
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), _Reading(sources) as reading:
            invoke(copied, signature, call.with_tensors(tensors))
    except Exception:  # whatever the module raises without gradients
        return set()
    return reading.read

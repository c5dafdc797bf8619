"""What a module is made of, apart from the values of its tensors: a graph serves it until this changes."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch import nn

_PLAIN = (bool, int, float, str, bytes, type(None))
_LONGEST = 64


class Fingerprint:
    """The module at one moment.

    Attributes:
        key: equal as long as graphs of the module stay right: modules and their attributes as far as they are plain
            values (those of configurations too), modes, and for each tensor its type, its shape, whether it requires a
            gradient and which others are the same.
        tensors: parameters, buffers, and tensors that are plain attributes.
        names: theirs, if asked for.
    """

    def __init__(self, module: nn.Module, *, named: bool = False) -> None:
        self.tensors: list[torch.Tensor] = []
        self.names: list[str] = []
        self._named = named
        self._found: list[Any] = []
        self._seen: dict[int, int] = {}
        self._visit(module, "")
        self.key: Hashable = tuple(self._found)

    def _visit(self, module: nn.Module, path: str) -> None:
        found, seen = self._found, self._seen
        known = seen.get(id(module))
        found.append(known)
        if known is not None:
            return
        seen[id(module)] = len(seen)
        found.append(type(module))
        for name, value in module.__dict__.items():
            if type(value) in _PLAIN:
                found.append((name, value))
            elif isinstance(value, torch.Tensor):
                self._add(name, value, path)
            elif name[0] != "_":
                found.append((name, _summary(value, seen)))
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is None:
                    found.append((name, None))
                else:
                    self._add(name, tensor, path)
        for name, child in module._modules.items():
            found.append(name)
            if child is not None:
                self._visit(child, f"{path}{name}." if self._named else "")

    def _add(self, name: str, tensor: torch.Tensor, path: str) -> None:
        index = self._seen.setdefault(id(tensor), len(self._seen))
        self._found.append((name, index, tensor.shape, tensor.dtype, tensor.requires_grad, tensor.device))
        self.tensors.append(tensor)
        if self._named:
            self.names.append(path + name)


def _summary(value: Any, seen: dict[int, int]) -> Any:
    """What of a value can change the course of `forward`, one level deep; objects beyond count as what they are."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return (type(value), len(value), *(_flat(item) for item in list(value)[:_LONGEST]))
    if isinstance(value, dict):
        return (dict, len(value), *((_flat(key), _flat(item)) for key, item in list(value.items())[:_LONGEST]))
    if isinstance(value, (nn.Module, type)) or callable(value):
        return id(value)
    known = seen.get(id(value))
    if known is not None:
        return known
    seen[id(value)] = len(seen)
    attributes = getattr(value, "__dict__", None)
    if not isinstance(attributes, dict):
        return type(value)
    return tuple((name, _flat(item)) for name, item in attributes.items())


def _flat(value: Any) -> Any:
    return value if type(value) in _PLAIN else type(value)


# transformers collects what layers return by hooks that change nothing.
_COLLECTING = frozenset({"transformers.utils.output_capturing"})


def hooks(module: nn.Module) -> Iterator[str]:
    """Names of the modules that have hooks: Python that runs at each call, and that no graph has."""
    for name, child in module.named_modules():
        attributes = child.__dict__
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
            if any(
                getattr(hook, "__module__", "") not in _COLLECTING for hook in (attributes.get(kind) or {}).values()
            ):
                yield name
                break

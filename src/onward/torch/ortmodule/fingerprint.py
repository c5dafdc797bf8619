"""What a module is made of, apart from the values of its tensors: a graph serves it until this changes."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import chain, islice
from operator import attrgetter, is_
from typing import Any

import torch
from torch import nn

_attributes = attrgetter("__dict__")
_kind = attrgetter("shape", "dtype", "requires_grad", "device", "layout")
_chained = chain.from_iterable
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
        # What was looked at, for `is_current`.
        self._objects: list[Any] = []
        self._dicts: list[dict[Any, Any]] = []
        self._others: list[list[Any] | set[Any]] = []
        self._visit(module, "")
        self.key: Hashable = tuple(self._found)
        self._outline, elements = self._contents()
        self._elements = list(elements)
        self._kinds = list(map(_kind, self.tensors))

    def _contents(self) -> tuple[list[Any], Iterator[Any]]:
        """The sizes of all that was looked at and the names in it, and everything that has these names."""
        dicts = [*map(_attributes, self._objects), *self._dicts]
        outline = [*map(len, dicts), *map(len, self._others), *_chained(dicts)]
        return outline, chain(_chained(map(dict.values, dicts)), _chained(self._others))

    def is_current(self) -> bool:
        """Whether the module is certain to have this key still, because all is the very same that it was made of.

        It takes a tenth of the time of another one. False says nothing.
        """
        outline, elements = self._contents()
        return (
            outline == self._outline  # equal names are the same, which is faster to see than of other things
            and all(map(is_, elements, self._elements))
            and list(map(_kind, self.tensors)) == self._kinds
        )

    def _visit(self, module: nn.Module, path: str) -> None:
        found, seen = self._found, self._seen
        known = seen.get(id(module))
        found.append(known)
        if known is not None:
            return
        seen[id(module)] = len(seen)
        found.append(type(module))
        self._objects.append(module)
        for name, value in module.__dict__.items():
            if type(value) in _PLAIN:
                found.append((name, value))
            elif isinstance(value, torch.Tensor):
                self._add(name, value, path)
            elif name[0] != "_":
                found.append((name, self._summary(value)))
        for tensors in (module._parameters, module._buffers):
            self._dicts.append(tensors)
            for name, tensor in tensors.items():
                if tensor is None:
                    found.append((name, None))
                else:
                    self._add(name, tensor, path)
        self._dicts.append(module._modules)
        for name, child in module._modules.items():
            found.append(name)
            if child is not None:
                self._visit(child, f"{path}{name}." if self._named else "")

    def _add(self, name: str, tensor: torch.Tensor, path: str) -> None:
        index = self._seen.setdefault(id(tensor), len(self._seen))
        self._found.append((name, index, _kind(tensor)))
        self.tensors.append(tensor)
        if self._named:
            self.names.append(path + name)

    def _summary(self, value: Any) -> Any:
        """What of a value can change the course of `forward`, one level deep; objects beyond count as what they are."""
        if isinstance(value, (tuple, frozenset)):
            return (type(value), len(value), *map(_flat, islice(value, _LONGEST)))
        if isinstance(value, (list, set)):
            self._others.append(value)
            return (type(value), len(value), *map(_flat, islice(value, _LONGEST)))
        if isinstance(value, dict):
            self._dicts.append(value)
            return (dict, len(value), *((_flat(key), _flat(item)) for key, item in islice(value.items(), _LONGEST)))
        if isinstance(value, (nn.Module, type)) or callable(value):
            return id(value)
        known = self._seen.get(id(value))
        if known is not None:
            return known
        self._seen[id(value)] = len(self._seen)
        attributes = getattr(value, "__dict__", None)
        if not isinstance(attributes, dict):
            return type(value)
        self._objects.append(value)
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

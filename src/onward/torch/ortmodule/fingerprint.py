"""What a module is made of, apart from the values of its tensors: a graph serves it until this changes."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

_attributes = attrgetter("__dict__")
_kind = attrgetter("shape", "dtype", "requires_grad", "device", "layout")
_chained = chain.from_iterable
_PLAIN = (bool, int, float, str, bytes, type(None))
_COLLECTIONS = (tuple, frozenset, list, set, dict)
_OF_TORCH = frozenset(vars(nn.Module()))
_DEEPEST, _LONGEST = 4, 64  # what lies deeper, and the elements of longer collections in others, do not count


class Fingerprint:
    """The module at one moment.

    Attributes:
        key: equal as long as graphs of the module stay right: modules and their attributes as far as they are plain
            values (those of configurations too), modes, which have hooks, and for each tensor its type, its shape,
            whether it requires a gradient and which others are the same.
        tensors: parameters, buffers, and tensors that are plain attributes.
        names: theirs, if asked for.
        aside: tensors in lists, dictionaries and other objects. Graphs have them as constants, so that the key says
            which they are, and how often they have been written to.
        is_trained_aside: whether some of them require gradients, or are those of modules.
    """

    def __init__(self, module: nn.Module, *, named: bool = False) -> None:
        self.tensors: list[torch.Tensor] = []
        self.names: list[str] = []
        self.aside: list[torch.Tensor] = []
        self.is_trained_aside = False
        self._named = named
        self._found: list[Any] = []
        self._seen: dict[int, int] = {}
        # What was looked at, for `is_current`.
        self._objects: list[Any] = []
        self._dicts: list[dict[Any, Any]] = []
        self._others: list[list[Any] | set[Any]] = []
        self._hidden: list[nn.Module] = []
        self._visit(module, "")
        self._add_hidden()
        self._module, self._hooked, self._handles = module, tuple(hooks(module)), RemovableHandle.next_id
        self._found.append(self._hooked)
        self.key: Hashable = tuple(self._found)
        self._outline, elements = self._contents()
        self._elements = list(elements)
        self._kinds = list(map(_kind, self.tensors))
        self._versions = list(map(_version, self.aside))

    def _contents(self) -> tuple[list[Any], Iterator[Any]]:
        """The sizes of all that was looked at and the names in it, and everything that has these names."""
        dicts = [*map(_attributes, self._objects), *self._dicts]
        outline = [*map(len, dicts), *map(len, self._others), *_chained(dicts)]
        return outline, chain(_chained(map(dict.values, dicts)), _chained(self._others))

    def is_current(self) -> bool:
        """Whether the module is certain to have this key still, because all is the very same that it was made of.

        It takes a tenth of the time of another one. False says nothing.
        """
        if self._handles != RemovableHandle.next_id:  # somebody has registered a hook somewhere
            if self._hooked != tuple(hooks(self._module)):
                return False
            self._handles = RemovableHandle.next_id
        outline, elements = self._contents()
        return (
            not self._hooked  # nobody says when they are removed
            and outline == self._outline  # equal names are the same, which is faster to see than of other things
            and all(map(is_, elements, self._elements))
            and list(map(_kind, self.tensors)) == self._kinds
            and list(map(_version, self.aside)) == self._versions
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
            if isinstance(value, torch.Tensor):
                self._add(name, value, path)
            elif name[0] != "_" or type(value) in _PLAIN or (type(value) in _COLLECTIONS and name not in _OF_TORCH):
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

    def _summary(self, value: Any, depth: int = 0) -> Any:
        """What of a value can change the course of `forward`."""
        kind = type(value)
        if kind in _PLAIN:
            return kind, value
        if isinstance(value, torch.Tensor):
            return self._tensor_aside(value)
        if isinstance(value, nn.Module):
            self._hidden.append(value)
            return id(value)
        if isinstance(value, type) or callable(value):
            return id(value)
        if depth == _DEEPEST or (depth and isinstance(value, _COLLECTIONS) and len(value) > _LONGEST):
            return kind
        if isinstance(value, _COLLECTIONS):
            return kind, len(value), self._elements_of(value, depth + 1)
        known = self._seen.get(id(value))
        if known is not None:
            return known
        self._seen[id(value)] = len(self._seen)
        attributes = getattr(value, "__dict__", None)
        if not isinstance(attributes, dict):
            return kind
        self._objects.append(value)
        return tuple((name, self._summary(item, depth + 1)) for name, item in attributes.items())

    def _elements_of(self, value: Any, depth: int) -> Any:
        if isinstance(value, dict):
            self._dicts.append(value)
            found = tuple((_flat(key), self._summary(item, depth)) for key, item in value.items())
        else:
            if isinstance(value, (list, set)):
                self._others.append(value)
            found = tuple(self._summary(item, depth) for item in value)
        return found if len(found) <= _LONGEST else hash(found)  # keys are kept

    def _tensor_aside(self, tensor: torch.Tensor) -> _Same:
        self.aside.append(tensor)
        return _Same(tensor)

    def _add_hidden(self) -> None:
        """Modules that torch does not know to be parts of this one, unless they are elsewhere in it."""
        for module in self._hidden:
            if id(module) not in self._seen:
                self._objects.extend(module.modules())
                inner = Fingerprint(module)
                self._found.append((inner.key, tuple(map(self._tensor_aside, (*inner.tensors, *inner.aside)))))
                self.is_trained_aside |= bool(inner.tensors)
        known = set(map(id, self.tensors))
        self.aside = [tensor for tensor in self.aside if id(tensor) not in known]
        self.is_trained_aside |= any(tensor.requires_grad for tensor in self.aside)
        self._found.append(tuple(map(_version, self.aside)))


class _Same:
    """Equal to what is made of the very same object."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


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

"""What a module is made of, apart from the values of its tensors: a graph serves it until this changes."""

from __future__ import annotations

import enum
import functools
import random
import types
from collections.abc import Collection, Hashable, Iterable, Iterator
from itertools import chain, starmap
from operator import attrgetter, is_
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook
from torch.utils.hooks import RemovableHandle

from onward.torch.ortmodule.contents import (
    ARRAYS,
    COLLECTIONS,
    DEEPEST,
    PLAIN,
    Same,
    elements_of,
    in_slot,
    is_plain,
    is_special,
    slots_of,
    state_of,
)
from onward.torch.ortmodule.outside import is_installed, is_of_user, variables

_attributes = attrgetter("__dict__")
_kind = attrgetter("shape", "dtype", "requires_grad", "device", "layout")
_chained = chain.from_iterable
_entries = types.MappingProxyType.values
_OF_TORCH = frozenset(vars(nn.Module()))
_LONGEST = 1024  # the elements of longer collections in others do not count
_KEPT = 64  # of longer ones, keys have a number only
_LOOKED_AT = ("_objects", "_dicts", "_others", "_classes", "_slots", "_variables", "_arrays", "sources")


class Fingerprint:
    """The module at one moment.

    Attributes:
        key: equal as long as graphs of the module stay right: modules and their attributes as far as they are plain
            values (those of configurations, of classes and of what their functions read from outside too), modes,
            which have hooks, the elements of numpy's arrays, and for each tensor its type, its shape, whether it
            requires a gradient and which others are the same.
        tensors: parameters, buffers, and tensors that are plain attributes.
        names: theirs, if asked for.
        aside: tensors in lists, dictionaries and other objects. Graphs have them as constants, so that the key says
            which they are, what they hold, and how often they have been written to.
        is_trained_aside: whether some of them require gradients, or are those of modules.
        sources: objects of which nobody sees what is in them: generators of random numbers and iterators, among others.
    """

    def __init__(self, module: nn.Module, *, named: bool = False) -> None:
        self.tensors: list[torch.Tensor] = []
        self.names: list[str] = []
        self.aside: list[torch.Tensor] = []
        self.is_trained_aside = False
        self.sources: list[object] = []
        self._named = named
        self._found: list[Any] = []
        self._seen: dict[int, int] = {}
        # What was looked at, for `is_current`.
        self._objects: list[Any] = []
        self._dicts: list[dict[Any, Any]] = []
        self._others: list[Collection[Any]] = []
        self._classes: list[types.MappingProxyType[str, Any]] = []
        self._slots: list[tuple[object, str]] = []
        self._variables: list[tuple[dict[str, Any], str]] = []
        self._arrays: list[Any] = []
        self._hidden: list[nn.Module] = []
        self._functions: list[types.FunctionType] = []
        self._visit(module, "")
        for function in self._functions:  # which grow meanwhile: one reads the next, many deep
            self._found.append(self._function(function))
        self._add_hidden()
        self._module, self._hooked, self._handles = module, tuple(hooks(module)), RemovableHandle.next_id
        self._found.append(self._hooked)
        self.key: Hashable = tuple(self._found)
        self._outline, elements = self._contents()
        self._elements = list(elements)
        self._kinds = list(map(_kind, self.tensors))
        self._states = list(map(state_of, self.aside)), list(map(elements_of, self._arrays))

    def _contents(self) -> tuple[list[Any], Iterator[Any]]:
        """The sizes of all that was looked at and the names in it, and everything that has these names."""
        dicts = [*map(_attributes, self._objects), *self._dicts]
        outline = [*map(len, dicts), *map(len, self._others), *_chained(dicts)]
        elements: list[Iterable[Any]] = [_chained(map(dict.values, dicts)), _chained(self._others)]
        if self._classes or self._slots or self._variables:
            outline += map(len, self._classes)
            elements.append(_chained(map(_entries, self._classes)))
            elements.append(starmap(in_slot, self._slots))
            elements.append(names.get(name) for names, name in self._variables)
        return outline, _chained(elements)

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
            and (list(map(state_of, self.aside)), list(map(elements_of, self._arrays))) == self._states
        )

    def _visit(self, module: nn.Module, path: str) -> None:
        found, seen = self._found, self._seen
        known = seen.get(id(module))
        found.append(known)
        if known is not None:
            return
        seen[id(module)] = len(seen)
        found.append(type(module))
        found.append(self._class(type(module)))
        self._objects.append(module)
        for name, value in module.__dict__.items():
            if isinstance(value, torch.Tensor):
                self._add(name, value, path)
            elif (
                name[0] != "_"
                or type(value) in PLAIN
                or (name not in _OF_TORCH and (is_plain(value) or isinstance(value, nn.Module)))
            ):
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
        if kind in PLAIN:
            return kind, value
        if isinstance(value, torch.Tensor):
            return self._tensor_aside(value)
        if isinstance(value, nn.Module):
            self._hidden.append(value)
            return Same(value)
        if isinstance(value, np.generic):
            return kind, value.tobytes()
        if isinstance(value, ARRAYS):
            self._arrays.append(value)
            form = (value.dtype.str, value.shape) if isinstance(value, np.ndarray) else value.typecode
            return kind, form, elements_of(value)
        if isinstance(value, type):
            return Same(value), self._class(value)
        if isinstance(value, types.FunctionType):
            self._functions.append(value)
            return Same(value)
        if isinstance(value, types.MethodType):
            return self._summary(value.__func__), self._summary(value.__self__, depth + 1)
        if isinstance(value, functools.partial):
            return tuple(self._summary(part, depth + 1) for part in (value.func, value.args, value.keywords))
        if isinstance(value, property):
            return Same(value), self._summary(value.fget)
        if depth == DEEPEST or (depth and isinstance(value, COLLECTIONS) and len(value) > _LONGEST):
            return kind
        if isinstance(value, COLLECTIONS):
            return kind, len(value), self._elements_of(value, depth + 1)
        return self._object(value, depth)

    def _object(self, value: Any, depth: int) -> Any:
        kind: Any = type(value)
        is_of_library = isinstance(value, types.ModuleType) and not is_of_user(vars(value))
        if is_of_library or isinstance(value, enum.Enum) or (callable(value) and is_installed(kind)):
            return Same(value)
        known = self._seen.get(id(value))
        if known is not None:
            return known
        self._seen[id(value)] = len(self._seen)
        attributes = getattr(value, "__dict__", None)
        slots = slots_of(kind)
        if not isinstance(attributes, dict):
            if not slots:
                self.sources.append(value)
                return Same(value)  # a type or a device of torch, a slice: what it is does not change
            attributes = {}
        else:
            if isinstance(value, random.Random):
                self.sources.append(value)
            self._objects.append(value)
        self._slots += [(value, name) for name in slots]
        attributes = attributes | {name: in_slot(value, name) for name in slots}
        found = [(n, self._summary(item, depth + 1)) for n, item in attributes.items() if not is_special(n, item)]
        return kind, self._class(kind), tuple(found)

    def _class(self, kind: type) -> Any:
        """Attributes of classes, which are those of their objects too."""
        found = []
        for base in kind.__mro__:
            if id(base) in self._seen or is_installed(base):
                continue
            self._seen[id(base)] = len(self._seen)
            attributes = vars(base)
            self._classes.append(attributes)
            found += [(name, self._summary(v, 1)) for name, v in attributes.items() if not is_special(name, v)]
        return tuple(found)

    def _function(self, function: types.FunctionType) -> Any:
        """Variables around a function of the user, which it reads."""
        if id(function) in self._seen:
            return None
        self._seen[id(function)] = len(self._seen)
        inner = getattr(function, "__wrapped__", None)
        if isinstance(inner, types.FunctionType):  # what a function of a library wraps may be the user's
            self._functions.append(inner)
        if not is_of_user(function.__globals__):
            return None
        found: list[Any] = [self._variable(function.__defaults__), self._variable(function.__kwdefaults__)]
        for names, name in variables(function):
            self._variables.append((names, name))
            found.append((name, self._variable(names[name])))
        for cell in function.__closure__ or ():
            self._slots.append((cell, "cell_contents"))
            found.append(("", self._variable(in_slot(cell, "cell_contents"))))
        return tuple(found)

    def _variable(self, value: Any) -> Any:
        matters = isinstance(value, (types.FunctionType, type, nn.Module)) or is_plain(value)
        return self._summary(value, 1) if matters else None

    def _elements_of(self, value: Any, depth: int) -> Any:
        if isinstance(value, dict):
            self._dicts.append(value)
            found = tuple((_flat(key), self._summary(item, depth)) for key, item in value.items())
        else:
            if not isinstance(value, (tuple, frozenset)):
                self._others.append(value)
            found = tuple(self._summary(item, depth) for item in value)
        return found if len(found) <= _KEPT else hash(found)  # keys are kept

    def _tensor_aside(self, tensor: torch.Tensor) -> Same:
        self.aside.append(tensor)
        return Same(tensor)

    def _add_hidden(self) -> None:
        """Modules that torch does not know to be parts of this one, unless they are elsewhere in it."""
        for module in self._hidden:
            if id(module) not in self._seen:
                inner = Fingerprint(module)
                for looked_at in _LOOKED_AT:
                    getattr(self, looked_at).extend(getattr(inner, looked_at))
                self._found.append((inner.key, tuple(map(self._tensor_aside, (*inner.tensors, *inner.aside)))))
                self.is_trained_aside |= bool(inner.tensors)
        known = set(map(id, self.tensors))
        self.aside = [tensor for tensor in self.aside if id(tensor) not in known]
        self.is_trained_aside |= any(tensor.requires_grad for tensor in self.aside)
        self._found.append(tuple(map(state_of, self.aside)))


def _flat(value: Any) -> Any:
    return value if type(value) in PLAIN else type(value)


# transformers collects what layers return by hooks that change nothing.
_COLLECTING = frozenset({"transformers.utils.output_capturing"})


EVERYWHERE = "*"


def hooks(module: nn.Module) -> Iterator[str]:
    """Names of the modules that have hooks: Python that runs at each call, and that no graph has."""
    if _has_any_global_hook():  # type: ignore[no-untyped-call]
        yield EVERYWHERE
    for name, child in module.named_modules():
        attributes = child.__dict__
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
            if any(
                getattr(hook, "__module__", "") not in _COLLECTING for hook in (attributes.get(kind) or {}).values()
            ):
                yield name
                break

"""A module as a function of tensors alone, which exporters follow."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from onward.torch.ortmodule.caches import opened
from onward.torch.ortmodule.call import Call, invoke
from onward.torch.ortmodule.packed import packed_layers
from onward.torch.ortmodule.spelling import Spelled

_NUMBERS: dict[type, Callable[[Any], object]] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


class Flat(nn.Module):
    """The module as a function of tensors, with its tensors under the same names."""

    def __init__(self, module: nn.Module, signature: inspect.Signature, call: Call) -> None:
        super().__init__()
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor) or name in ("_parameters", "_buffers", "_modules", "training"):
                self.__dict__[name] = value
        # What torch.export sees being made it knows the values of; tensors from elsewhere it does not look into.
        fixed = {
            place: (leaf.tolist(), leaf.dtype)
            for place, leaf in enumerate(call.leaves)
            if isinstance(leaf, torch.Tensor) and place not in call.places
        }
        flags = {name: (module.get_buffer(name).tolist(), module.get_buffer(name).dtype) for name in call.flags}
        # In a list, so that it is no submodule.
        self.__dict__["_inner"] = [(module, signature, call, fixed, flags)]

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        module, signature, call, fixed, flags = self.__dict__["_inner"][0]
        leaves = list(call.leaves)
        for place, (value, dtype) in fixed.items():
            leaves[place] = torch.tensor(value, dtype=dtype)
        # What is changed in place is a copy, which is one more result: a graph cannot write to its inputs.
        given = [tensor.clone() if place in call.changed else tensor for place, tensor in enumerate(tensors)]
        with packed_layers(module), Spelled(), _constants(module, flags):
            returned = invoke(module, signature, replace(call, leaves=leaves).with_tensors(given))
            # By name: while they are followed, buffers are others.
            buffers = [module.get_buffer(name).clone() for name in call.rewritten]
        leaves = torch.utils._pytree.tree_leaves((opened(returned), [given[place] for place in call.changed], buffers))
        for leaf in leaves:
            # A number is what it was at the first call. One that is a size is so for no other size; one that is made of
            # data never is, and torch refuses to say what it is.
            if (kind := _NUMBERS.get(type(leaf))) is not None:
                kind(leaf)
        return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))


def examples(call: Call) -> list[torch.Tensor]:
    """Tensors like the arguments, each with memory of its own."""
    return [
        tensor.detach().clone(memory_format=torch.contiguous_format).requires_grad_(tensor.requires_grad)
        for tensor in call.tensors
    ]


@contextlib.contextmanager
def _constants(module: nn.Module, values: dict[str, tuple[Any, torch.dtype]]) -> Iterator[None]:
    """Buffers by name that are made anew of these values, which torch.export sees."""
    places = {name: module.get_submodule(name.rpartition(".")[0])._buffers for name in values}
    before = {name: buffers[name.rpartition(".")[2]] for name, buffers in places.items()}
    for name, (value, dtype) in values.items():
        places[name][name.rpartition(".")[2]] = torch.tensor(value, dtype=dtype)
    try:
        yield
    finally:
        for name, buffer in before.items():
            places[name][name.rpartition(".")[2]] = buffer


@contextlib.contextmanager
def attributes_as_buffers(module: nn.Module) -> Iterator[None]:
    """Tensors that are plain attributes, which torch.export would take the numbers of where Python reads them."""
    before = {child: dict(vars(child)) for child in module.modules()}
    for child, attributes in before.items():
        found = {
            name: value
            for name, value in attributes.items()
            if isinstance(value, torch.Tensor) and not value.requires_grad
        }
        child.__dict__["_buffers"] = {**child._buffers, **found}
        for name in found:
            del child.__dict__[name]
    try:
        yield
    finally:
        for child, attributes in before.items():
            child.__dict__.clear()
            child.__dict__.update(attributes)

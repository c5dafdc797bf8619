"""One call of a module: its arguments, however they are nested, as tensors and a key."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onward.torch.inputs import path_name
from onward.torch.ortmodule._fallback import ORTModuleIOError

_CONSTANTS = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)
_TENSORS = (torch.Tensor, torch.nn.Parameter)
DTYPES = frozenset(
    {
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool,
        torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    }
)  # fmt: skip
Sizes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Call:
    """The arguments of a call.

    Attributes:
        leaves: everything in the arguments, in order.
        tree: how they are nested.
        tensors: those of the leaves that are tensors, numbers that vary from call to call among them.
        places: where these are among the leaves.
        key: all that two calls have in common which the same graph can serve, but for sizes.
        sizes: the shapes of the tensors.
    """

    leaves: list[Any]
    tree: pytree.TreeSpec
    tensors: list[torch.Tensor]
    places: tuple[int, ...]
    key: Hashable
    sizes: Sizes

    @classmethod
    def of(
        cls, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any], varying: set[Hashable]
    ) -> Call:
        """The call of a function with these arguments; `varying` holds the numbers to be seen as tensors."""
        arguments = signature.bind(*args, **kwargs).arguments
        for name, parameter in signature.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD and len(arguments.get(name, ())) > 1:
                arguments[name] = dict(sorted(arguments[name].items()))  # their order means nothing
        leaves, tree = pytree.tree_flatten(arguments)
        tensors, places = [], []
        kinds: list[Hashable] = []
        for place, leaf in enumerate(leaves):
            if type(leaf) in _TENSORS:
                pass
            elif not isinstance(leaf, _CONSTANTS):
                raise ORTModuleIOError(
                    f"ORTModule does not support the following model data type {type(leaf)} "
                    f"(ORTModule fails to extract schema from data: Unsupported flatten data type: {type(leaf)})"
                )
            elif type(leaf) in (int, float) and (tree, place, type(leaf)) in varying:
                leaf = torch.tensor(leaf, dtype=torch.int64 if type(leaf) is int else torch.float64)
            else:
                kinds.append((type(leaf), leaf))
                continue
            tensors.append(leaf)
            places.append(place)
            # Exporters take sizes of 0 and 1 for fixed, so they need graphs of their own.
            small = tuple(min(size, 2) for size in leaf.shape)
            kinds.append((leaf.dtype, leaf.device, leaf.requires_grad, leaf.is_contiguous(), small))
        sizes = tuple(tuple(tensor.shape) for tensor in tensors)
        return cls(leaves, tree, tensors, tuple(places), (tree, tuple(kinds)), sizes)

    @property
    def numbers(self) -> dict[Hashable, int | float]:
        """The plain numbers among the arguments; what identifies each, and its value."""
        return {
            (self.tree, place, type(leaf)): leaf
            for place, leaf in enumerate(self.leaves)
            if type(leaf) in (int, float) and place not in self.places
        }

    @property
    def names(self) -> list[str]:
        """A name for each tensor: the path of arguments, keys and places that leads to it."""
        paths = [path for path, _ in pytree.tree_flatten_with_path(self.arguments(self.leaves))[0]]
        taken: set[str] = set()
        names = []
        for place in self.places:
            name = base = path_name(paths[place])
            number = 1
            while name in taken:
                name, number = f"{base}_{number}", number + 1
            taken.add(name)
            names.append(name)
        return names

    def arguments(self, leaves: Sequence[Any]) -> dict[str, Any]:
        """The arguments by name, with other leaves."""
        found: dict[str, Any] = pytree.tree_unflatten(leaves, self.tree)
        return found

    def with_tensors(self, tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
        """The arguments with other tensors in their places."""
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        return self.arguments(leaves)


def invoke(module: torch.nn.Module, signature: inspect.Signature, arguments: Mapping[str, Any]) -> Any:
    """Call `forward` itself with arguments by name."""
    bound = inspect.BoundArguments(signature, dict(arguments))
    return module.forward(*bound.args, **bound.kwargs)


@dataclass(frozen=True)
class Results:
    """What a module returned: tensors, and constants around them."""

    leaves: list[Any]
    tree: pytree.TreeSpec
    places: tuple[int, ...]

    @classmethod
    def of(cls, returned: Any) -> Results:
        leaves, tree = pytree.tree_flatten(returned)
        places = tuple(place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
        for leaf in leaves:
            if not isinstance(leaf, (torch.Tensor, *_CONSTANTS)):
                raise ORTModuleIOError(f"ORTModule does not support the following model output type {type(leaf)}")
        return cls(leaves, tree, places)

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [self.leaves[place] for place in self.places]

    def emptied(self) -> Results:
        """The same without the tensors."""
        leaves = [None if place in self.places else leaf for place, leaf in enumerate(self.leaves)]
        return Results(leaves, self.tree, self.places)

    def filled(self, tensors: Sequence[torch.Tensor]) -> Any:
        """What the module would return with these tensors."""
        if len(self.leaves) == 1 and self.tree.is_leaf():
            return tensors[0] if self.places else self.leaves[0]
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        return pytree.tree_unflatten(leaves, self.tree)

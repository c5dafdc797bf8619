"""One call of a module: its arguments, however they are nested, as tensors and a key."""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onward.torch.inputs import path_name
from onward.torch.ortmodule._fallback import ORTModuleIOError
from onward.torch.ortmodule.caches import opened

_CONSTANTS = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device, enum.Enum)
_TENSORS = (torch.Tensor, torch.nn.Parameter)
FLAT = frozenset({*_CONSTANTS, *_TENSORS})  # what cannot hold anything
DTYPES = frozenset(
    {
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool,
        torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    }
)  # fmt: skip
Sizes = tuple[tuple[int, ...], ...]


@dataclass(slots=True)  # frozen ones take longer to make
class Call:
    """The arguments of a call.

    Attributes:
        leaves: everything in the arguments, in order.
        tree: how they are nested.
        tensors: those of the leaves that are tensors, numbers that vary from call to call among them.
        places: where these are among the leaves.
        key: all that two calls have in common which the same graph can serve, but for sizes.
        sizes: the shapes of the tensors.
        numbers: the plain numbers among the arguments; what identifies each, and its value.
        changed: which of the tensors the module changes in place, if that is known.
        rewritten: names of the buffers that it changes in place, other than by BatchNorm, if that is known.
        flags: names of the buffers that are constants: the module makes decisions by them.
    """

    leaves: list[Any]
    tree: pytree.TreeSpec
    tensors: list[torch.Tensor]
    places: tuple[int, ...]
    key: Hashable
    sizes: Sizes
    numbers: dict[Hashable, int | float]
    changed: tuple[int, ...] = ()
    rewritten: tuple[str, ...] = ()
    flags: frozenset[str] = frozenset()

    @property
    def fixable(self) -> set[Hashable]:
        """What identifies the tensors that are single numbers."""
        return {(self.tree, place) for place in self.places if is_number(self.leaves[place])}

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


class Caller:
    """Takes the arguments of calls of one function apart.

    Attributes:
        varying: the numbers that are seen as tensors, by what identifies them.
        fixed: the tensors that are seen as constants: the module makes decisions by them.
    """

    def __init__(self, signature: inspect.Signature, fixed: Container[Hashable] = ()) -> None:
        self.varying: set[Hashable] = set()
        self.fixed = fixed
        self._signature = signature
        self._trees: dict[pytree.TreeSpec, int] = {}
        # Of calls without anything nested, by how many arguments have no names and the names of the others: how they
        # are nested by the signature, the number of that, and which argument is which leaf.
        self._flat: dict[tuple[int, tuple[str, ...]], tuple[pytree.TreeSpec, int, list[int]]] = {}

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """The call with these arguments."""
        leaves, tree, nesting = self._leaves(args, kwargs)
        tensors, places, sizes = [], [], []
        kinds: list[Hashable] = [nesting]
        numbers: dict[Hashable, int | float] = {}
        for place, leaf in enumerate(leaves):
            kind = type(leaf)
            if kind is int or kind is float:
                number = (nesting, place, kind)
                if number not in self.varying:
                    numbers[number] = leaf
                    kinds.append((kind, leaf))
                    continue
                leaf = torch.tensor(leaf, dtype=torch.int64 if kind is int else torch.float64)
            elif kind not in _TENSORS:
                if not isinstance(leaf, _CONSTANTS):
                    raise ORTModuleIOError(
                        f"ORTModule does not support the following model data type {kind} "
                        f"(ORTModule fails to extract schema from data: Unsupported flatten data type: {kind})"
                    )
                kinds.append((kind, leaf))
                continue
            elif self.fixed and (tree, place) in self.fixed and is_number(leaf):
                leaves[place] = leaf.detach().clone()
                kinds.append((leaf.dtype, leaf.shape, leaf.item()))
                continue
            shape = leaf.shape
            tensors.append(leaf)
            places.append(place)
            sizes.append(shape)
            layout = leaf.layout
            is_dense = layout is torch.strided and leaf.is_contiguous()
            kinds.append((leaf.dtype, leaf.device, layout, leaf.requires_grad, is_dense, _small(shape)))
        return Call(leaves, tree, tensors, tuple(places), tuple(kinds), tuple(sizes), numbers)

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], pytree.TreeSpec, int]:
        given = (*args, *kwargs.values())
        if not FLAT.issuperset(map(type, given)):
            leaves, tree = self._flattened(args, kwargs)
            return leaves, tree, self._number(tree)
        form = len(args), tuple(kwargs)
        known = self._flat.get(form)
        if known is None:
            first, rest = tuple(range(len(args))), range(len(args), len(given))
            order, tree = self._flattened(first, dict(zip(kwargs, rest, strict=True)))
            known = self._flat[form] = tree, self._number(tree), order
        tree, nesting, order = known
        return [given[index] for index in order], tree, nesting

    def _flattened(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], pytree.TreeSpec]:
        arguments = self._signature.bind(*args, **kwargs).arguments
        for name, parameter in self._signature.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD and len(arguments.get(name, ())) > 1:
                arguments[name] = dict(sorted(arguments[name].items()))  # their order means nothing
        return pytree.tree_flatten(arguments)

    def _number(self, tree: pytree.TreeSpec) -> int:
        """One for each; it takes long to compare them."""
        return self._trees.setdefault(tree, len(self._trees))


@functools.lru_cache(maxsize=4096)
def _small(shape: torch.Size) -> tuple[int, ...]:
    """Exporters take sizes of 0 and 1 for fixed, so they need graphs of their own."""
    return tuple(min(size, 2) for size in shape)


def is_number(leaf: Any) -> bool:
    """Whether it is a tensor of one element, which a module may make decisions by."""
    return type(leaf) in _TENSORS and leaf.numel() == 1 and not leaf.requires_grad and leaf.device.type == "cpu"


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
        leaves, tree = pytree.tree_flatten(opened(returned))
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

"""The arguments of a module, however they are nested, as a list of tensors with names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onward.errors import OnwardError, UnknownNameError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.utils._pytree import TreeSpec

BATCH = "batch"


@dataclass(frozen=True)
class Inputs:
    """What a module is called with.

    Attributes:
        signature: of `forward`.
        leaves: everything in the arguments, in their order; what is no tensor is a constant of the model.
        tree: how they are nested.
        names: of the leaves that are tensors.
        axes: the axes that may have any size, for each name.
    """

    signature: inspect.Signature
    leaves: list[Any]
    tree: TreeSpec
    names: list[str]
    axes: dict[str, dict[int, str]]

    @classmethod
    def of(
        cls,
        module: nn.Module,
        args: Any,
        kwargs: Mapping[str, Any],
        dynamic_batch: bool,
        dynamic_axes: Mapping[str, Mapping[int, str]],
        names: Sequence[str] | None,
    ) -> Inputs:
        """The arguments, with two examples in place of one: sizes of 1 count as fixed."""
        import torch
        from torch.utils import _pytree as pytree

        signature = inspect.signature(module.forward)
        try:
            bound = signature.bind(*(args if isinstance(args, tuple) else (args,)), **kwargs)
        except TypeError as error:
            raise OnwardError(f"{type(module).__name__} cannot be called with these arguments: {error}") from error
        paths, tree = pytree.tree_flatten_with_path(dict(bound.arguments))
        leaves = _told_apart([leaf for _, leaf in paths])
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if not tensors:
            raise OnwardError("there is no tensor among the arguments; a model has inputs")
        own = {name for named in (module.named_parameters, module.named_buffers) for name, _ in named()}
        if names is None:
            names = distinct([path_name(path) for path, leaf in paths if isinstance(leaf, torch.Tensor)], own)
        elif clashing := own.intersection(names):
            raise OnwardError(f"input_names has {sorted(clashing)}, which tensors of the module are called")
        elif len(names) != len(tensors):
            raise OnwardError(f"there are {len(names)} input_names for {len(tensors)} tensors")
        unknown = [name for name in dynamic_axes if name not in names]
        if unknown:
            raise UnknownNameError(f"dynamic_axes has {unknown}, but the inputs are {list(names)}")
        size = next((len(tensor) for tensor in tensors if tensor.ndim), None)
        axes: dict[str, dict[int, str]] = {}
        for name, tensor in zip(names, tensors, strict=True):
            if name in dynamic_axes:
                axes[name] = dict(dynamic_axes[name])
            elif dynamic_batch and tensor.ndim and len(tensor) == size:
                axes[name] = {0: BATCH}
        inputs = cls(signature, leaves, tree, list(names), axes)
        return inputs.repeated(2) if size == 1 else inputs

    @property
    def tensors(self) -> list[Tensor]:
        """The inputs of the model."""
        import torch

        return [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]

    @property
    def call(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and the named arguments."""
        return self.call_with(self.tensors)

    def call_with(self, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with other tensors."""
        from torch.utils import _pytree as pytree

        bound = inspect.BoundArguments(self.signature, pytree.tree_unflatten(self._placed(tensors), self.tree))
        return bound.args, bound.kwargs

    def shapes(self, *, named: bool = True) -> dict[str, Any]:
        """The dynamic axes, nested as the arguments are, for `torch.export`.

        Sizes of one name are equal, and others independent, if they are `named`; else torch finds out how they depend
        on each other.
        """
        import torch
        from torch.utils import _pytree as pytree

        dim = torch.export.Dim
        symbols = {s: dim(s) if named else dim.DYNAMIC for axes in self.axes.values() for s in axes.values()}
        dims = [{axis: symbols[s] for axis, s in self.axes.get(name, {}).items()} or None for name in self.names]
        shapes: dict[str, Any] = pytree.tree_unflatten(self._placed(dims, others=None), self.tree)
        return shapes

    def repeated(self, times: int) -> Inputs:
        """The same with a batch that is several times as long."""
        import torch

        tensors = [
            torch.cat([tensor] * times) if self.axes.get(name, {}).get(0) == BATCH else tensor
            for name, tensor in zip(self.names, self.tensors, strict=True)
        ]
        return Inputs(self.signature, self._placed(tensors), self.tree, self.names, self.axes)

    def _placed(self, values: Sequence[Any], **others: Any) -> list[Any]:
        """Values in the places of the tensors; the other leaves as they are, or all the same."""
        import torch

        remaining = iter(values)
        return [
            next(remaining) if isinstance(leaf, torch.Tensor) else others.get("others", leaf) for leaf in self.leaves
        ]


def distinct(names: Sequence[str], taken: Collection[str]) -> list[str]:
    """Names for inputs that nothing else has: an argument may be called like a parameter."""
    every, found = set(taken), list[str]()
    for name in names:
        while name in every:
            name += "_input"
        every.add(name)
        found.append(name)
    return found


def path_name(path: Sequence[Any]) -> str:
    """What the keys and places on a path are called together."""
    parts = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
    return re.sub(r"\W", "_", "_".join(parts))


def _told_apart(leaves: list[Any]) -> list[Any]:
    """A tensor that is given twice is two inputs; torch's exporters would take both for the first."""
    import torch

    seen: set[int] = set()
    told: list[Any] = []
    for leaf in leaves:
        again = isinstance(leaf, torch.Tensor) and id(leaf) in seen
        seen.add(id(leaf))
        told.append(leaf.detach().clone() if again else leaf)
    return told

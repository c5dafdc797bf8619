"""torch's own list of differentiable operators, with samples of their arguments, as modules and data."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

_SAMPLES = 4  # of each operator, from the first to the last ones

# What other numbers an operator gets after those of the sample. Zeros and equal ones are where gradients have kinks.
DATA: dict[str, Callable[[Tensor], Tensor]] = {
    "turned round": lambda x: x.flatten().flip(0).view(x.shape),
    "negative": lambda x: -x,
    "zeros": torch.zeros_like,
    "ones": torch.ones_like,
    "rounded": torch.round,
    "halves": lambda x: (2 * x).round() / 2,
    "large": lambda x: 100 * x,
    "small": lambda x: 1e-6 * x,
}  # fmt: skip


class Operator(nn.Module):
    """A function of the tensors among its arguments; results are multiplied by a parameter."""

    def __init__(self, function: Callable[..., Any], leaves: list[Any], tree: pytree.TreeSpec) -> None:
        super().__init__()
        self.function, self.tree = function, tree
        self.leaves = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, *tensors: Tensor) -> Any:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = 1 * tensor  # what is not a leaf may be changed in place
        args, kwargs = pytree.tree_unflatten(leaves, self.tree)
        found = self.function(*args, **kwargs)
        return pytree.tree_map_only(Tensor, lambda y: y * self.scale if y.is_floating_point() else y, found)


@dataclass(frozen=True)
class Sample:
    """A module that computes an operator, and tensors that it takes."""

    operator: str
    module: Operator
    tensors: list[Tensor]

    def step(self, net: nn.Module, change: Callable[[Tensor], Tensor] | None = None) -> list[Tensor | None]:
        """Results, and the gradients of arguments and parameter."""
        given = [t if change is None or not t.is_floating_point() else change(t) for t in self.tensors]
        given = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in given]
        torch.manual_seed(0)
        results = [y for y in pytree.tree_leaves(net(*given)) if isinstance(y, Tensor)]
        ends = [y for y in results if y.requires_grad]
        seeds = [torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape) for y in ends]
        targets = [x for x in (*given, self.module.scale) if x.requires_grad]
        return [*results, *(torch.autograd.grad(ends, targets, seeds, allow_unused=True) if ends else ())]


@functools.cache
def operators() -> list[Any]:
    # It takes seconds, and prints; not for those who only collect tests.
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if op.supports_autograd and torch.float32 in op.supported_dtypes("cpu")]


def samples(operator: Any) -> Iterator[Sample]:
    name = ".".join(filter(None, (operator.name, operator.variant_test_name)))
    every = list(operator.sample_inputs("cpu", torch.float32, requires_grad=True))
    for given in every[:: max(1, len(every) // _SAMPLES)][:_SAMPLES]:
        leaves, tree = pytree.tree_flatten(((given.input, *given.args), dict(given.kwargs)))
        tensors = [leaf.detach() for leaf in leaves if isinstance(leaf, Tensor)]
        if all(t.layout is torch.strided and not t.is_complex() and not t.is_quantized for t in tensors):
            yield Sample(name, Operator(operator, leaves, tree), tensors)

"""Run a module by torch once, to learn what it does and to compare what its graphs do.

Exporters drop what has no operator: custom gradients, blocks without gradients, attributes that change, random numbers
of Python. Such a module would train wrongly without a word. So each pair of graphs is compared with torch before it is
used: results, gradients, buffers, and the state of the random numbers.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from onward.torch.ortmodule._fallback import (
    AttributesChanged,
    ORTModuleONNXModelException,
    ORTModuleTorchModelException,
)
from onward.torch.ortmodule.call import Call, Results, invoke
from onward.torch.ortmodule.dropout import Drawn, Draws
from onward.torch.ortmodule.fingerprint import Fingerprint, hooks

# Of the largest element. Rounding of single precision gives 1e-5 to 1e-4; what gives more is looked at in double
# precision, so a constant that is wrong by half a percent cannot hide.
_TOLERANCE = {torch.float64: 1e-6, torch.float16: 5e-2}
_USUAL_TOLERANCE = 1e-3
# Gradients that cancel out, of a bias before a normalisation for instance, are noise: measured by the largest of all.
_NOISE = 1e-3
# Some modules amplify rounding, deep ones that normalise small batches for instance. A graph may be this many times as
# far from double precision as torch itself, provided that torch is not much further off than usual.
_TIMES_ROUNDING, _MOST_ROUNDING = 4.0, 5e-2


@dataclass
class Rehearsal:
    """What torch computed.

    Attributes:
        results: what the module returned; its tensors are detached.
        differentiable: which of these tensors have a gradient.
        cotangents: the gradients of those, drawn at random.
        inputs: the gradients of the tensors among the arguments; None where there is none.
        states: the gradients of the tensors of the module, in the order of its `Fingerprint`.
        after: the tensors of the module afterwards.
        drawn: masks that were drawn.
        generator: the state of torch's random numbers afterwards.
    """

    results: Results
    differentiable: list[bool]
    cotangents: list[torch.Tensor]
    inputs: list[torch.Tensor | None]
    states: list[torch.Tensor | None]
    after: list[torch.Tensor]
    drawn: list[Drawn]
    generator: torch.Tensor


def shadow(module: nn.Module) -> nn.Module:
    """A copy to experiment with."""
    hooked = next(hooks(module), None)
    if hooked is not None:
        raise ORTModuleTorchModelException(
            f"module {hooked!r} has hooks, which graphs have not"
            if hooked
            else "the wrapped module has hooks, which graphs have not; register them on the ORTModule"
        )
    try:
        return copy.deepcopy(module)
    except Exception as error:  # whatever the attributes of the module raise
        raise ORTModuleTorchModelException(f"the module cannot be copied ({type(error).__name__}: {error})") from error


def rehearse(module: nn.Module, signature: inspect.Signature, call: Call, *, notes_draws: bool = True) -> Rehearsal:
    """Run a module, a copy of the user's, forward and backward by torch.

    While it is noted what is drawn, torch does not take short cuts, which return other types under autocast.
    """
    before = Fingerprint(module)
    versions = [tensor._version for tensor in before.tensors]
    generators = random.getstate(), np.random.get_state(legacy=True)
    leaves = list(call.leaves)
    given = []
    for place, tensor in zip(call.places, call.tensors, strict=True):
        if isinstance(leaves[place], torch.Tensor):  # not so if it is a number that varies
            tensor = tensor.detach().clone().requires_grad_(tensor.requires_grad)
            leaves[place] = tensor
        given.append(tensor)
    others = [leaf for place, leaf in enumerate(leaves) if place not in call.places]
    constants = [leaf for leaf in others if isinstance(leaf, torch.Tensor)]
    constant_versions = [tensor._version for tensor in constants]
    given_versions = [tensor._version for tensor in given]
    with torch.random.fork_rng(devices=[]):
        draws = Draws()
        with draws if notes_draws else contextlib.nullcontext():
            returned = invoke(module, signature, call.arguments(leaves))
        generator = torch.get_rng_state()
    if not _is_same(generators[0], random.getstate()) or not _is_same(generators[1], np.random.get_state(legacy=True)):
        random.setstate(generators[0])
        raise ORTModuleTorchModelException("it draws random numbers from Python or numpy")
    if [tensor._version for tensor in (*given, *constants)] != [*given_versions, *constant_versions]:
        raise ORTModuleTorchModelException("it changes an argument in place")
    results = Results.of(returned)
    after = Fingerprint(module)
    if after.key != before.key:
        raise AttributesChanged("calling it changes its attributes, or its tensors for others")
    buffers = {id(tensor) for tensor in module.buffers()}
    for tensor, version in zip(after.tensors, versions, strict=True):
        if tensor._version != version and id(tensor) not in buffers:
            raise ORTModuleTorchModelException("it changes a parameter in place")
    tensors = results.tensors
    differentiable = [tensor.requires_grad for tensor in tensors]
    ends = [tensor for tensor in tensors if tensor.requires_grad]
    source = torch.Generator().manual_seed(0)
    cotangents = [torch.randn(end.shape, generator=source, dtype=torch.float64).to(end.dtype) for end in ends]
    targets = [tensor for tensor in (*given, *after.tensors) if tensor.requires_grad]
    found: list[torch.Tensor | None] = [None] * len(targets)
    if ends:
        unique = list(dict.fromkeys(targets))
        by_target = dict(zip(unique, _gradients(ends, unique, cotangents), strict=True))
        found = [by_target[target] for target in targets]
    gradients = iter(found)
    every = [next(gradients) if tensor.requires_grad else None for tensor in (*given, *after.tensors)]
    changed = [tensor.detach() for tensor in after.tensors]
    detached = Results([_detached(leaf) for leaf in results.leaves], results.tree, results.places)
    count = len(given)
    return Rehearsal(
        detached, differentiable, cotangents, every[:count], every[count:], changed, draws.found, generator
    )


def _gradients(
    ends: Sequence[torch.Tensor], targets: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor | None]:
    try:
        return torch.autograd.grad(ends, targets, cotangents, allow_unused=True)
    except (
        Exception
    ) as error:  # of a backward pass in Python: checkpoints of torch allow no other way than `backward()`
        raise ORTModuleTorchModelException(
            f"its backward pass cannot be rehearsed ({type(error).__name__}: {error})"
        ) from error


def _detached(leaf: object) -> object:
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf


def _is_same(first: Any, second: Any) -> bool:
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and all(map(_is_same, first, second))
    return bool(np.array_equal(first, second)) if isinstance(first, np.ndarray) else first == second


def require_equal(
    what: str,
    found: Sequence[torch.Tensor | None],
    expected: Sequence[torch.Tensor | None],
    double: Callable[[], Sequence[torch.Tensor | None] | None],
    noise: float = _NOISE,
) -> None:
    """Raise where tensors of a graph are not those of torch; `double` are those of double precision, if there are."""
    scales = [_largest(tensor) for tensor in expected if tensor is not None and tensor.dtype.is_floating_point]
    floor = noise * max(scales, default=0.0)
    for index, (got, wanted) in enumerate(zip(found, expected, strict=True)):
        if wanted is None or got is None:
            if (wanted is None) != (got is None) and _largest(got if wanted is None else wanted) > 0:
                raise ORTModuleONNXModelException(f"{what} {index} is there in one of graph and torch, not in both")
            continue
        if got.dtype != wanted.dtype or got.shape != wanted.shape:
            raise ORTModuleONNXModelException(
                f"{what} {index} of the graph is {got.dtype} {list(got.shape)}, that of torch {wanted.dtype} "
                f"{list(wanted.shape)}"
            )
        if not wanted.dtype.is_floating_point:
            if not torch.equal(got, wanted):
                raise ORTModuleONNXModelException(f"{what} {index} of the graph is another than that of torch")
            continue
        tolerance = _TOLERANCE.get(wanted.dtype, _USUAL_TOLERANCE)
        limit = tolerance * max(_largest(wanted), floor, 1e-30)
        if not torch.allclose(got.double(), wanted.double(), rtol=0, atol=limit, equal_nan=True):
            exact = double()
            if exact is not None and _is_rounding(got, wanted, exact[index]):
                continue
            worst = (got.double() - wanted.double()).abs().max()
            raise ORTModuleONNXModelException(
                f"{what} {index} of the graph differs from that of torch by {worst:.2e}, where its largest element is "
                f"{_largest(wanted):.2e}"
            )


def _is_rounding(got: torch.Tensor, wanted: torch.Tensor, exact: torch.Tensor | None) -> bool:
    if exact is None or exact.dtype != torch.float64 or exact.shape != wanted.shape:
        return False
    ours, theirs = (float((tensor.double() - exact).abs().max()) for tensor in (got, wanted))
    return theirs <= _MOST_ROUNDING * _largest(exact) and ours <= _TIMES_ROUNDING * theirs  # NaN is not


def _largest(tensor: torch.Tensor | None) -> float:
    if tensor is None or tensor.numel() == 0:
        return 0.0
    finite = tensor.detach().double()
    finite = finite[finite.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0

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
import threading
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from onward.torch.ortmodule._fallback import AttributesChanged, ORTModuleTorchModelException
from onward.torch.ortmodule.call import Call, Results, invoke
from onward.torch.ortmodule.dropout import Drawn, Draws
from onward.torch.ortmodule.fingerprint import EVERYWHERE, Fingerprint, hooks
from onward.torch.ortmodule.sources import Sources

# Exporting and differentiating take 20 to 50 milliseconds for each; 80 layers of a transformer have 8,000.
_MOST_OPERATIONS = 10_000


@dataclass
class Rehearsal:
    """What torch computed.

    Attributes:
        results: what the module returned, and the arguments that it changed, if any; the tensors are detached.
        differentiable: which of these tensors have a gradient.
        cotangents: the gradients of those, drawn at random.
        inputs: the gradients of the tensors among the arguments; None where there is none.
        states: the gradients of the tensors of the module, in the order of its `Fingerprint`.
        after: the tensors of the module afterwards.
        drawn: masks that were drawn.
        generator: the state of torch's random numbers afterwards.
        changed: which of the tensors among the arguments it changed in place.
        returned: which of the results are such an argument itself.
        rewritten: names of the buffers that it changed in place, other than by BatchNorm and by counting calls.
    """

    results: Results
    differentiable: list[bool]
    cotangents: list[torch.Tensor]
    inputs: list[torch.Tensor | None]
    states: list[torch.Tensor | None]
    after: list[torch.Tensor]
    drawn: list[Drawn]
    generator: torch.Tensor
    changed: tuple[int, ...] = ()
    returned: dict[int, int] = field(default_factory=dict)
    rewritten: tuple[str, ...] = ()


def shadow(module: nn.Module) -> nn.Module:
    """A copy to experiment with."""
    if any(isinstance(inner, nn.parallel.DistributedDataParallel) for inner in module.modules()):
        raise ORTModuleTorchModelException(
            "DistributedDataParallel in it would not see the gradients of a graph, and not exchange them; wrap the "
            "ORTModule in it: DistributedDataParallel(ORTModule(module))"
        )
    hooked = next(hooks(module), None)
    if hooked == EVERYWHERE:
        raise ORTModuleTorchModelException(
            "there are hooks for all modules (torch.nn.modules.module.register_module_forward_hook and the like), "
            "which graphs have not"
        )
    if hooked is not None:
        raise ORTModuleTorchModelException(
            f"module {hooked!r} has hooks, which graphs have not"
            if hooked
            else "the wrapped module has hooks, which graphs have not; register them on the ORTModule"
        )
    if any(tensor.is_inference() for tensor in (*module.parameters(), *module.buffers())):
        raise ORTModuleTorchModelException(
            "its parameters or buffers were made in torch.inference_mode, and do not know when they are changed; make "
            "the module outside of it"
        )
    if not type(module).__call__.__module__.startswith("torch."):
        raise ORTModuleTorchModelException(
            f"{type(module).__name__} has a method __call__ of its own around forward; ORTModule exports forward alone"
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
    if before.is_trained_aside:
        raise ORTModuleTorchModelException(
            "it keeps modules, or tensors that require gradients, in a list, a dictionary, another object or a "
            "variable outside of it, which torch does not take for parts of it; nn.ModuleList, nn.ParameterList and "
            "their like are for them"
        )
    versions = [tensor._version for tensor in before.tensors]
    given = _Given(call)
    untouched = _Untouched(before, given.constants)
    draws = Draws()
    with torch.random.fork_rng(devices=[]):
        with draws if notes_draws else contextlib.nullcontext(), untouched.noting_hooks(module):
            returned = invoke(module, signature, call.arguments(given.leaves))
        generator = torch.get_rng_state()
    untouched.require()
    _require_few(draws)
    changed = given.changed()
    results = Results.of((returned, [*changed.values()]) if changed else returned)
    after = Fingerprint(module, named=True)
    if after.key != before.key:
        raise AttributesChanged("calling it changes its attributes, or its tensors for others")
    written = [tensor._version != version for tensor, version in zip(after.tensors, versions, strict=True)]
    rewritten = _rewritten(module, after, written, draws.statistics)
    tensors = results.tensors
    _require_no_views([after.tensors[index] for index in rewritten.values()], tensors)
    ends = [tensor for tensor in tensors if tensor.requires_grad]
    source = torch.Generator().manual_seed(0)
    cotangents = [torch.randn(end.shape, generator=source, dtype=torch.float64).to(end.dtype) for end in ends]
    states = [tensor if tensor.requires_grad else None for tensor in after.tensors]
    gradients = _gradients(ends, [*given.targets, *states], cotangents)
    count = len(given.targets)
    return Rehearsal(
        results=Results([_detached(leaf) for leaf in results.leaves], results.tree, results.places),
        differentiable=[tensor.requires_grad for tensor in tensors],
        cotangents=cotangents,
        inputs=gradients[:count],
        states=gradients[count:],
        after=[tensor.detach() for tensor in after.tensors],
        drawn=draws.found,
        generator=generator,
        changed=tuple(changed),
        returned={i: place for i, tensor in enumerate(tensors) for place, own in changed.items() if tensor is own},
        rewritten=tuple(rewritten),
    )


class _Given:
    """The arguments of a call, as copies that the module may change.

    Attributes:
        leaves: all of them.
        constants: the tensors that graphs do not take for arguments.
        targets: what has a gradient, of the tensors of the call; None where there is none.
    """

    def __init__(self, call: Call) -> None:
        self.leaves = list(call.leaves)
        self.targets: list[torch.Tensor | None] = []
        for place, tensor in zip(call.places, call.tensors, strict=True):
            if isinstance(self.leaves[place], torch.Tensor):  # not so if it is a number that varies
                own = tensor.detach().clone().requires_grad_(tensor.requires_grad)
                # Only what was computed may be changed in place, if it has a gradient.
                self.leaves[place] = own if tensor.is_leaf else own.clone()
                tensor = own
            # Asked now, before any is the result of what it is changed by.
            self.targets.append(tensor if tensor.requires_grad else None)
        for place, leaf in enumerate(self.leaves):  # tensors of inference mode do not know whether they are changed
            if isinstance(leaf, torch.Tensor) and leaf.is_inference():
                self.leaves[place] = leaf.clone()
        others = [leaf for place, leaf in enumerate(self.leaves) if place not in call.places]
        self.constants = [leaf for leaf in others if isinstance(leaf, torch.Tensor)]
        self._own = {i: leaf for i, p in enumerate(call.places) if isinstance(leaf := self.leaves[p], torch.Tensor)}
        self._versions = {place: tensor._version for place, tensor in self._own.items()}

    def changed(self) -> dict[int, torch.Tensor]:
        """Those of the tensors that are another version now, by their places."""
        return {place: own for place, own in self._own.items() if own._version != self._versions[place]}


class _Untouched:
    """What a call has to leave as it is, because graphs know nothing of it."""

    def __init__(self, before: Fingerprint, constants: list[torch.Tensor]) -> None:
        self._generators = random.getstate(), np.random.get_state(legacy=True)
        self._sources, self._hooked = Sources(before.sources), False
        self._constants, self._versions = constants, [tensor._version for tensor in constants]

    @contextlib.contextmanager
    def noting_hooks(self, module: nn.Module) -> Iterator[None]:
        """Inside, hooks of tensors are noted; those of modules are seen among their attributes."""
        made, thread, make = [], threading.get_ident(), RemovableHandle.__init__

        def noted(handle: RemovableHandle, hooks: Any, **options: Any) -> None:
            if threading.get_ident() == thread:
                made.append(hooks)
            make(handle, hooks, **options)

        setattr(RemovableHandle, "__init__", noted)  # noqa: B010
        try:
            yield
        finally:
            setattr(RemovableHandle, "__init__", make)  # noqa: B010
        of_modules = {id(value) for one in module.modules() for name, value in vars(one).items() if "hooks" in name}
        self._hooked = any(id(hooks) not in of_modules for hooks in made)

    def require(self) -> None:
        of_python, of_numpy = self._generators
        if not _is_same(of_python, random.getstate()) or not _is_same(of_numpy, np.random.get_state(legacy=True)):
            random.setstate(of_python)
            np.random.set_state(of_numpy)
            raise ORTModuleTorchModelException("it draws random numbers from Python or numpy")
        if self._hooked:
            raise ORTModuleTorchModelException(
                "it registers hooks while it is called, which graphs have not; those that limit or reverse gradients "
                "are part of the graph as a torch.autograd.Function"
            )
        if self._sources.have_been_asked():
            raise ORTModuleTorchModelException(
                "it has a generator of random numbers or an iterator of its own, which gives something else each time"
            )
        if [tensor._version for tensor in self._constants] != self._versions:
            raise ORTModuleTorchModelException("it changes an argument in place that is a constant of the graph")


def _require_few(draws: Draws) -> None:
    if draws.refusals:
        raise ORTModuleTorchModelException(draws.refusals[0])
    if draws.operations > _MOST_OPERATIONS:
        raise ORTModuleTorchModelException(
            f"it runs {draws.operations} operations in one call, and making graphs of more than {_MOST_OPERATIONS} "
            "takes many minutes; a loop over a long sequence has so many"
        )


def _rewritten(
    module: nn.Module, state: Fingerprint, written: Sequence[bool], statistics: Container[int]
) -> dict[str, int]:
    """Where the buffers are that were written to, by name, but for statistics of BatchNorm and counts of calls."""
    buffers = {id(tensor) for tensor in module.buffers()}
    found: dict[int, tuple[str, int]] = {}
    for index, (name, tensor) in enumerate(zip(state.names, state.tensors, strict=True)):
        if not written[index]:
            continue
        if id(tensor) not in buffers:
            raise ORTModuleTorchModelException("it changes a parameter in place")
        is_count = tensor.dtype == torch.int64 and tensor.ndim == 0
        if not is_count and tensor.data_ptr() not in statistics:
            found.setdefault(id(tensor), (name, index))
    return dict(found.values())


def _require_no_views(buffers: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
    """Refuse what a graph returns as it is now, and torch as it will be after the next call."""
    if any(tensor.requires_grad for tensor in buffers):
        raise ORTModuleTorchModelException("it writes to a buffer what has a gradient")
    memory = {tensor.untyped_storage().data_ptr() for tensor in buffers}
    if any(tensor.untyped_storage().data_ptr() in memory for tensor in results):
        raise ORTModuleTorchModelException("it returns a buffer that it changes in place")


def _gradients(
    ends: Sequence[torch.Tensor], targets: Sequence[torch.Tensor | None], cotangents: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """The gradients of all targets that are there; some may be the same tensor."""
    unique = list(dict.fromkeys(target for target in targets if target is not None))
    if not ends or not unique:
        return [None] * len(targets)
    try:
        found = torch.autograd.grad(ends, unique, cotangents, allow_unused=True)
    except Exception as error:  # of a backward pass in Python: checkpoints of torch allow no way but `backward()`
        raise ORTModuleTorchModelException(
            f"its backward pass cannot be rehearsed ({type(error).__name__}: {error})"
        ) from error
    by_target = dict(zip(unique, found, strict=True))
    return [None if target is None else by_target[target] for target in targets]


def _detached(leaf: object) -> object:
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf


def _is_same(first: Any, second: Any) -> bool:
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and all(map(_is_same, first, second))
    return bool(np.array_equal(first, second)) if isinstance(first, np.ndarray) else first == second

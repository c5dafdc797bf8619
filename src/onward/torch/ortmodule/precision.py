"""Half precision: computed in single precision, with the types of results that torch would give.

onnxruntime's CPU has hardly a kernel for bfloat16. So what torch would compute in it, under autocast or because tensors
are of that type, graphs compute in float32: more exactly than torch, and within bfloat16's accuracy of it.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.amp.autocast_mode import autocast

from onward.torch.ortmodule._fallback import ORTModuleONNXModelException
from onward.torch.ortmodule.call import Call
from onward.torch.ortmodule.comparison import Tensors, require_equal
from onward.torch.ortmodule.fingerprint import Fingerprint
from onward.torch.ortmodule.rehearsal import Rehearsal, rehearse, shadow

# Of the size of a tensor, all roundings of a deep network together. A module that does something else under autocast is
# further off; the comparison in single precision, which is far stricter, finds everything else.
_TOLERANCE = 0.25
# Gradients that cancel out are noise in half precision: they are measured by this part of the largest.
_NOISE = 0.1
# What rounding in single precision comes to in a sum of some ten products; how often it is tried at most; and how many
# of these runs are kept, for the next comparison.
_ROUNDING, _ROUNDED_OTHERWISE, _KEPT = 2.0**-22, 16, 4
_HALF = frozenset({torch.bfloat16, torch.float16})
# A module inside of a module may be rehearsed meanwhile.
_patching = threading.RLock()


def autocast_type() -> torch.dtype | None:
    """What autocast turns single precision into; None if it is off."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


def widened(
    tensor: torch.Tensor,
    narrow: frozenset[torch.dtype],
    dtype: torch.dtype = torch.float32,
    noise: torch.Generator | None = None,
) -> torch.Tensor:
    """The tensor as graphs take it; with noise, as if it had been rounded otherwise."""
    if tensor.dtype not in narrow:
        return tensor
    wide = tensor.to(dtype)
    if noise is not None:
        wide = wide * (1 + _ROUNDING * (2 * torch.rand(wide.shape, generator=noise, dtype=dtype) - 1))
    return wide


@dataclass(frozen=True)
class Rehearsed:
    """A call as torch runs it.

    Attributes:
        types: of the tensors that it returns.
        narrow: types that graphs take float32 in place of.
        exact: the call in single precision, which graphs are compared with.
        call: its arguments.
        module: a copy of the module to follow, its tensors in single precision.
        double: the call in double precision, to tell rounding from mistakes, and then some that began with other
            roundings of everything, each run when it is asked for first; empty if the module does not allow it.
    """

    types: list[torch.dtype]
    narrow: frozenset[torch.dtype]
    exact: Rehearsal
    call: Call
    module: nn.Module
    double: Callable[[], Iterator[Rehearsal]]

    def require_equal(self, what: str, found: Tensors, of: Callable[[Rehearsal], Tensors], **options: float) -> None:
        """Raise where tensors of a graph are not what `of` takes from the call as torch ran it."""
        require_equal(what, found, of(self.exact), lambda: map(of, self.double()), **options)


def rehearse_call(module: nn.Module, signature: inspect.Signature, call: Call) -> Rehearsed:
    """Run copies of a module by torch: as it is, and in single precision where half precision is involved."""
    tensors = (*call.tensors, *Fingerprint(module).tensors)
    is_half = autocast_type() is not None or any(tensor.dtype is torch.bfloat16 for tensor in tensors)
    with _regions(off=False) as inside:
        given = rehearse(shadow(module), signature, call, notes_draws=not is_half)
    types = [tensor.dtype for tensor in given.results.tensors]
    if not is_half and not inside.entered:
        return Rehearsed(types, frozenset(), given, call, shadow(module), _doubled(module, signature, call))
    # onnxruntime has kernels for float16, if not for all operators; autocast decides operator by operator.
    narrow = _HALF if inside.entered or autocast_type() is not None else frozenset({torch.bfloat16})
    wide = _wide_call(call, narrow)
    with full_precision():
        exact = rehearse(_wide_shadow(module, narrow), signature, wide)
    _require_alike(given, exact)
    # What is returned beside tensors, a type for instance, is that of the call itself.
    exact.results = replace(exact.results, leaves=_leaves(given, exact))
    return Rehearsed(
        types, narrow, exact, wide, _wide_shadow(module, narrow), _doubled(module, signature, wide, narrow)
    )


def _doubled(
    module: nn.Module, signature: inspect.Signature, call: Call, narrow: frozenset[torch.dtype] = frozenset()
) -> Callable[[], Iterator[Rehearsal]]:
    single = frozenset({torch.float32, *narrow})
    kept: list[Rehearsal] = []

    def run(noise: torch.Generator | None) -> Rehearsal:
        copied = _wide_shadow(module, single, torch.float64, noise)
        with full_precision(), _default_type(torch.float64):
            return rehearse(copied, signature, _wide_call(call, single, torch.float64, noise))

    def rehearsed() -> Iterator[Rehearsal]:
        yield from kept
        for index in range(len(kept), 1 + _ROUNDED_OTHERWISE):
            try:
                found = run(None if index == 0 else torch.Generator().manual_seed(index))
            except Exception:  # modules that are written for one type raise what they like
                return
            if index < _KEPT:
                kept.append(found)
            yield found

    return rehearsed


@contextlib.contextmanager
def _default_type(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _wide_call(
    call: Call,
    narrow: frozenset[torch.dtype],
    dtype: torch.dtype = torch.float32,
    noise: torch.Generator | None = None,
) -> Call:
    leaves = list(call.leaves)
    tensors = [widened(t.detach(), narrow, dtype, noise).requires_grad_(t.requires_grad) for t in call.tensors]
    for place, tensor in zip(call.places, tensors, strict=True):
        if isinstance(leaves[place], torch.Tensor):  # not so if it is a number that varies
            leaves[place] = tensor
    return replace(call, leaves=leaves, tensors=tensors)


def _wide_shadow(
    module: nn.Module,
    narrow: frozenset[torch.dtype],
    dtype: torch.dtype = torch.float32,
    noise: torch.Generator | None = None,
) -> nn.Module:
    copied = shadow(module)
    for tensor in Fingerprint(copied).tensors:
        tensor.data = widened(tensor.data, narrow, dtype, noise)
    return copied


def _leaves(given: Rehearsal, exact: Rehearsal) -> list[object]:
    places = set(given.results.places)
    pairs = zip(given.results.leaves, exact.results.leaves, strict=True)
    return [second if place in places else first for place, (first, second) in enumerate(pairs)]


def _require_alike(given: Rehearsal, exact: Rehearsal) -> None:
    """Raise where half precision is not merely less exact."""
    first, second = given.results, exact.results
    if first.tree != second.tree or first.places != second.places or given.differentiable != exact.differentiable:
        raise ORTModuleONNXModelException("it returns something else in half precision than in single precision")
    if not torch.equal(given.generator, exact.generator):
        raise ORTModuleONNXModelException("it draws other random numbers in half precision")
    _require_near("result", first.tensors, second.tensors, 0.0)
    _require_near("gradient", [*given.inputs, *given.states], [*exact.inputs, *exact.states], _NOISE)


def _require_near(
    what: str, given: Sequence[torch.Tensor | None], exact: Sequence[torch.Tensor | None], noise: float
) -> None:
    floor = noise * max((_norm(tensor) for tensor in exact if tensor is not None), default=0.0)
    for index, (half, single) in enumerate(zip(given, exact, strict=True)):
        if half is None or single is None:
            if half is not single:
                raise ORTModuleONNXModelException(f"{what} {index} depends on whether precision is half or single")
            continue
        if half.shape != single.shape or half.is_floating_point() != single.is_floating_point():
            raise ORTModuleONNXModelException(f"{what} {index} has another shape or type in half precision")
        # Whole numbers follow from comparisons, which rounding may turn over.
        if half.is_floating_point():
            finite = half.isfinite() & single.isfinite()  # half precision overflows earlier
            difference = _norm(half[finite].double() - single[finite].double())
            if difference > _TOLERANCE * max(_norm(single[finite]), floor, 1e-30):
                raise ORTModuleONNXModelException(
                    f"{what} {index} is {difference:.2e} from that of single precision, whose norm is "
                    f"{_norm(single[finite]):.2e}: more than rounding"
                )


def _norm(tensor: torch.Tensor) -> float:
    return float(tensor.detach().double().norm()) if tensor.is_floating_point() else 0.0


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Autocast is off inside, also where the module switches it on."""
    with autocast("cpu", enabled=False), _regions(off=True):
        yield


class _Regions:
    entered = False


@contextlib.contextmanager
def _regions(*, off: bool) -> Iterator[_Regions]:
    """Notice whether this thread switches autocast on; `off`: it has no effect, and exporters do not see it."""
    own, found = threading.get_ident(), _Regions()
    enter, leave = autocast.__enter__, autocast.__exit__

    def entering(self: autocast) -> object:
        if threading.get_ident() == own:
            found.entered |= self.device == "cpu" and self._enabled
            if off:
                return self
        return enter(self)  # type: ignore[no-untyped-call]

    def leaving(self: autocast, *error: object) -> object:
        return None if off and threading.get_ident() == own else leave(self, *error)

    with _patching:
        setattr(autocast, "__enter__", entering)  # noqa: B010  mypy does not let methods be assigned
        setattr(autocast, "__exit__", leaving)  # noqa: B010
        try:
            yield found
        finally:
            setattr(autocast, "__enter__", enter)  # noqa: B010
            setattr(autocast, "__exit__", leave)  # noqa: B010

"""Whether what a graph computes is what torch computes, but for rounding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from onward.torch.ortmodule._fallback import ORTModuleONNXModelException

Tensors = Sequence[torch.Tensor | None]

# Of the largest element. Rounding of single precision gives 1e-5 to 1e-4; what gives more is looked at in double
# precision, so a constant that is wrong by half a percent cannot hide.
_TOLERANCE = {torch.float64: 1e-6, torch.float16: 5e-2}
_USUAL_TOLERANCE = 1e-3
# Gradients that cancel out, of a bias before a normalisation for instance, are noise: measured by the largest of all.
_NOISE = 1e-3
# Some modules amplify rounding, deep ones that normalise small batches for instance. A graph may be this many times as
# far from double precision as rounding takes torch, but no further than a mistake of a few percent would take it. Far
# by all elements: rounding puts single ones on the other side of a kink, others each time.
_TIMES_ROUNDING, _MOST_ROUNDING = 3.0, 3e-2
_MEASURED = 3  # runs with other roundings that tell how far rounding goes
_MOST_OF_A_KINK = 0.1  # of a tensor: what is further off is not worth many more runs
_NOTHING = 1e-9  # of the largest of all: what cancels out in double precision


def require_equal(
    what: str,
    found: Tensors,
    expected: Tensors,
    double: Callable[[], Iterable[Tensors]],
    noise: float = _NOISE,
) -> None:
    """Raise where tensors of a graph are not those of torch.

    Args:
        what: they are, in messages.
        found: those of the graph.
        expected: those of torch.
        double: the same in double precision, then for arguments and parameters that are rounded otherwise, one after
            the other as they are asked for; empty if the module cannot be run in it.
        noise: what part of the largest tensor of all counts as much as the tensor itself.
    """
    scales = [_largest(tensor) for tensor in expected if tensor is not None and tensor.dtype.is_floating_point]
    floor = noise * max(scales, default=0.0)
    suspects = []
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
        if not _is_near(got, wanted, limit):
            suspects.append(_Suspect(index, got, wanted, limit))
    if suspects:
        _excuse(what, suspects, iter(double()), may_cancel=noise > 0)


@dataclass(frozen=True)
class _Suspect:
    """A tensor of a graph that is further from torch's than usual."""

    index: int
    got: torch.Tensor
    wanted: torch.Tensor
    limit: float

    def is_rounding(self, runs: Sequence[Tensors], *, may_cancel: bool) -> bool:
        """Whether a graph is about as near to double precision as torch is, and as rounded arguments would be.

        What cancels out is noise altogether: then no more of it than there.
        """
        exact, *others = [run[self.index] for run in runs] or [None]
        if exact is None:
            return False
        distances = [_distance(tensor, exact) for tensor in (self.got, self.wanted, *others)]
        if not all(map(math.isfinite, distances)):
            return False
        ours, theirs = distances[0], max(distances[1:])
        cancels = may_cancel and _largest(exact) <= _NOTHING * max(map(_largest, runs[0]))
        # If torch itself is far off, what it computes in double precision may be something else.
        farthest = math.inf if cancels else _MOST_ROUNDING * float(exact.norm())
        return max(ours, distances[1]) <= farthest and ours <= _TIMES_ROUNDING * theirs

    def is_close(self, exact: Tensors) -> bool:
        """Whether single elements might account for all of the difference."""
        true = exact[self.index]
        return true is not None and _distance(self.got, true) <= _MOST_OF_A_KINK * float(true.norm())

    def is_result_of(self, run: Tensors) -> bool:
        """Whether this is what arguments that are rounded otherwise give."""
        other = run[self.index]
        return other is not None and other.shape == self.got.shape and _is_near(self.got, other, self.limit)

    def error(self, what: str) -> ORTModuleONNXModelException:
        worst = (self.got.double() - self.wanted.double()).abs().max()
        return ORTModuleONNXModelException(
            f"{what} {self.index} of the graph differs from that of torch by {worst:.2e}, where its largest element is "
            f"{_largest(self.wanted):.2e}"
        )


def _excuse(what: str, suspects: Sequence[_Suspect], runs: Iterator[Tensors], *, may_cancel: bool) -> None:
    """Raise if one of the tensors is off by more than rounding.

    An element nearly at a kink falls on its other side in some runs and not in others. So a graph may also be near to
    what one of many other roundings gives.
    """
    measured = list(itertools.islice(runs, 1 + _MEASURED))
    left = [suspect for suspect in suspects if not suspect.is_rounding(measured, may_cancel=may_cancel)]
    far = [suspect for suspect in left if not any(map(suspect.is_close, measured[:1]))]
    if far:
        raise far[0].error(what)
    others = itertools.chain(measured[1:], runs)
    while left:
        run = next(others, None)
        if run is None:
            raise left[0].error(what)
        left = [suspect for suspect in left if not suspect.is_result_of(run)]


def _distance(tensor: torch.Tensor | None, exact: torch.Tensor) -> float:
    if tensor is None or exact.dtype != torch.float64 or tensor.shape != exact.shape:
        return math.inf
    return float((tensor.double() - exact).norm())


def _is_near(got: torch.Tensor, wanted: torch.Tensor, limit: float) -> bool:
    """Whether no element differs by more; infinities and NaN have to be in the same places."""
    if wanted.numel() == 0 or float((got - wanted).abs().max()) <= limit:  # which no NaN is
        return True
    return torch.allclose(got.double(), wanted.double(), rtol=0, atol=limit, equal_nan=True)


def _largest(tensor: torch.Tensor | None) -> float:
    """The largest of all finite elements, by size."""
    if tensor is None or tensor.numel() == 0:
        return 0.0
    if tensor.is_floating_point():
        largest = float(tensor.detach().abs().max())
        if math.isfinite(largest):
            return largest
    finite = tensor.detach().double()
    finite = finite[finite.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0

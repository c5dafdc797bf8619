"""What the mean of a loss is made of, where it is not the plain mean of what `reduction="none"` returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import onnx_ir as ir

from onward.losses.target import TargetKind, one_per_sample

L = TypeVar("L", bound=Callable[..., ir.Value])
_TERMS = "onward_loss_terms"


class Terms(NamedTuple):
    """A mean sum(rows) / sum(shares), or the plain one where all shares are 1."""

    rows: ir.Value
    shares: ir.Value | None = None


class Mean(NamedTuple):
    """How a loss takes its mean.

    Attributes:
        terms: a function of the builder, of the value for `reduction="none"`, and of what the loss takes, by name.
        samples: the kind of target that has one number for each sample.
        counted: the shares once more, as a function of arrays, the targets and the options by name; None where all
            are 1.
    """

    terms: Callable[..., Terms]
    samples: TargetKind
    counted: Callable[..., np.ndarray | None] | None = None


def mean_of(
    terms: Callable[..., Terms],
    samples: TargetKind = one_per_sample,
    counted: Callable[..., np.ndarray | None] | None = None,
) -> Callable[[L], L]:
    """Say how a loss takes its mean; `weighted` and `share` ask for it."""

    def attach(loss: L) -> L:
        setattr(loss, _TERMS, Mean(terms, samples, counted))
        return loss

    return attach


def mean_terms(loss: Any) -> Mean:
    """How a loss takes its mean: that of all elements unless it says otherwise."""
    return getattr(loss, _TERMS, Mean(lambda op, rows, **values: Terms(rows), one_per_sample))

"""How much the loss of a batch counts in the loss of all batches."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np

from onward.losses.base import Loss, declared_signature, options_of
from onward.losses.target import class_indices, like_prediction, one_per_row
from onward.losses.terms import mean_terms
from onward.losses.weighted import SAMPLE_WEIGHT

_ELEMENTWISE = (class_indices, like_prediction, one_per_row)


def share(loss: Loss | None, targets: Mapping[str, np.ndarray], rows: int) -> float | None:
    """What the mean over a batch was divided by, but for a factor that all batches have in common.

    The loss of several batches together is the mean of their losses with these weights, also where classes have
    weights, labels are ignored, samples have weights (the target `sample_weight`) or sequences have different lengths.
    None for a loss that is a sum: sums of batches add up. A loss about which nothing is known is taken for a mean over
    the rows.
    """
    if loss is None:
        return float(rows)
    options = options_of(loss)
    if options.get("reduction") == "sum":
        return None
    values = {name: value for name, value in targets.items() if name != SAMPLE_WEIGHT}
    counted = mean_terms(_function(loss)).counted
    shares = None if counted is None else counted(**{**options, **values})
    weight = targets.get(SAMPLE_WEIGHT)
    if weight is not None:
        weight = weight.astype(np.float64)
        return float(weight.sum() if shares is None else (weight * shares.reshape(len(weight), -1).sum(axis=1)).sum())
    if shares is not None:
        return float(shares.sum())
    return float(_elements(loss, values) or rows)


def _elements(loss: Loss, targets: Mapping[str, np.ndarray]) -> int | None:
    """How many elements the mean is over, where the first target tells it."""
    declared = declared_signature(loss)
    if declared is None or not targets:
        return None
    name, kind = next(iter(declared.targets.items()), ("", None))
    return targets[name].size if name in targets and kind in _ELEMENTWISE else None


def _function(loss: Loss) -> Loss:
    return _function(loss.func) if isinstance(loss, functools.partial) else loss

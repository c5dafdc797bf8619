"""The optimizers of TrainingSession by name, with the attributes that each weight has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from onward import optim
from onward.errors import OnwardError, UnknownNameError
from onward.optim import Optimizer
from onward.optim.base import chain
from onward.optim.transformations import (
    add_decayed_weights,
    decay_after_update,
    scale_by_adam,
    scale_by_learning_rate,
    scale_by_trust_ratio,
)
from onward.session.parameters import TrainingParameters

MOMENTS = {"mu": "Moment_1", "nu": "Moment_2"}  # slot -> what it is called in states
UPDATE_COUNT, STEP = "Update_Count", "Step"

_AVERAGES = {"alpha": 0.9, "beta": 0.999, "lambda": 0.0, "max_norm_clip": 1.0}
# name -> default of each attribute; the operator of Lamb corrects the bias, but its graph builder writes 0.
_ATTRIBUTES: dict[str, dict[str, float]] = {
    "SGDOptimizer": {},
    "AdamOptimizer": {**_AVERAGES, "epsilon": 1e-8, "do_bias_correction": 1, "weight_decay_mode": 0},
    "LambOptimizer": {
        **_AVERAGES,
        "epsilon": 1e-6,
        "ratio_min": -math.inf,
        "ratio_max": math.inf,
        "do_bias_correction": 0,
    },
}
# Adam counts the updates of each weight, Lamb those of all.
COUNTERS: dict[str, str] = {"AdamOptimizer": UPDATE_COUNT, "LambOptimizer": STEP}


@dataclass(frozen=True)
class Update:
    """How one weight is updated."""

    optimizer: Optimizer
    max_norm: float | None  # of all gradients together, None if they are not clipped


def updates_of(parameters: TrainingParameters, weights: list[str]) -> dict[str, Update]:
    """The update of each weight; nothing without an optimizer."""
    name = parameters.training_optimizer_name
    if not name:
        return {}
    if name not in _ATTRIBUTES:
        raise UnknownNameError(f"there is no optimizer {name!r}; a TrainingSession has {', '.join(_ATTRIBUTES)}")
    for where in ("optimizer_attributes_map", "optimizer_int_attributes_map"):
        missing = [weight for weight in weights if weight not in getattr(parameters, where)]
        if missing:
            raise OnwardError(
                f"Failed to find attribute map for weight {missing[0]!r}: TrainingParameters.{where} needs an entry, "
                "which may be {}, for each weight that is trained"
            )
    return {weight: _update(name, _given(parameters, name, weight), parameters) for weight in weights}


def _given(parameters: TrainingParameters, name: str, weight: str) -> dict[str, float]:
    given: dict[str, float] = {
        **parameters.optimizer_attributes_map[weight],
        **parameters.optimizer_int_attributes_map[weight],
    }
    unknown = sorted(given.keys() - _ATTRIBUTES[name].keys())
    if unknown:
        known = ", ".join(_ATTRIBUTES[name]) or "no attributes"
        raise UnknownNameError(f"{name} of {weight!r} has {known}, and not {', '.join(unknown)}")
    return _ATTRIBUTES[name] | given


def _update(name: str, given: Mapping[str, float], parameters: TrainingParameters) -> Update:
    if name == "SGDOptimizer":
        return Update(optim.sgd(), None)  # the original computes the norm, but never clips
    max_norm = given["max_norm_clip"] if parameters.enable_grad_norm_clip else None
    betas, eps, decay = (given["alpha"], given["beta"]), given["epsilon"], given["lambda"]
    after = name == "AdamOptimizer" and given["weight_decay_mode"] == 1
    # States of a session are those of the textbook, and a session continues from them bit by bit.
    averages = scale_by_adam(
        *betas, eps, bias_correction=bool(given["do_bias_correction"]), corrected_eps=not after, plain=True
    )
    if name == "LambOptimizer":
        lowest, highest = max(given["ratio_min"], 0.0), given["ratio_max"]  # a ratio of norms is not negative
        if highest < lowest:
            raise OnwardError(f"ratio_max of LambOptimizer must be at least ratio_min, {lowest}, not {highest}")
        steps = [averages, add_decayed_weights(decay), scale_by_trust_ratio(lowest, highest), scale_by_learning_rate()]
    elif after:
        steps = [averages, scale_by_learning_rate(), decay_after_update(decay)]
    elif given["weight_decay_mode"] == 0:
        steps = [averages, add_decayed_weights(decay), scale_by_learning_rate()]
    else:
        raise OnwardError(f"weight_decay_mode of AdamOptimizer is 0 or 1, not {given['weight_decay_mode']!r}")
    return Update(Optimizer(chain(*steps), name), max_norm)

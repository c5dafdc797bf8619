"""How estimators update weights: scikit-learn's solvers by its names, all others of `onward.optim` by theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from onward.errors import UnknownNameError
from onward.optim import Optimizer, adamw_hf, chain, get, names, scale_by_learning_rate, trace


class Solver(NamedTuple):
    """What decides how weights are updated, but for the learning rate."""

    name: str
    momentum: float
    nesterov: bool
    betas: tuple[float, float]
    epsilon: float

    def optimizer(self) -> Optimizer:
        """The same for a training graph."""
        if self.name == "adam":
            # scikit-learn's eps is not corrected, which is Adam as in Hugging Face's AdamW.
            return adamw_hf(betas=self.betas, eps=self.epsilon, weight_decay=0.0)
        if self.name == "sgd":
            # v = momentum v + lr g: the velocity remembers the rates of its time, unlike torch's.
            moments = [trace(self.momentum, nesterov=self.nesterov)] if self.momentum else []
            return Optimizer(chain(scale_by_learning_rate(), *moments), "sgd")
        return get(self.name)


def solver(parameters: Mapping[str, Any]) -> Solver:
    """That of an estimator with these parameters."""
    name = parameters["solver"]
    if name not in names():
        raise UnknownNameError(f"there is no solver {name!r}; there are {', '.join(names())}")
    betas = (float(parameters["beta_1"]), float(parameters["beta_2"]))
    momentum, nesterov = float(parameters["momentum"]), bool(parameters["nesterovs_momentum"])
    return Solver(name, momentum, nesterov, betas, float(parameters["epsilon"]))

"""Optimizers by name. Each docstring gives the formula and says whose convention it follows.

Common to all: `learning_rate` is the one to start with; `clip` is a bound of the norm of all gradients together (as
torch.nn.utils.clip_grad_norm_), or `clip(value)`, or `clip_by_norm(bound)` for each tensor; `groups` gives some
parameters a learning rate factor or a weight decay of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from onward.errors import OnwardError, UnknownNameError
from onward.optim.base import Transformation, chain
from onward.optim.clipping import GlobalNorm
from onward.optim.groups import Group
from onward.optim.optimizer import Optimizer
from onward.optim.transformations import (
    add_decayed_weights,
    decay_after_update,
    require,
    scale_by_adadelta,
    scale_by_adam,
    scale_by_adamax,
    scale_by_decayed_learning_rate,
    scale_by_learning_rate,
    scale_by_lion,
    scale_by_rms,
    scale_by_rss,
    scale_by_trust_ratio,
    trace,
)

Clip = float | GlobalNorm | Transformation | None
Betas = tuple[float, float]
Recipe = TypeVar("Recipe", bound=Callable[..., Optimizer])

_recipes: dict[str, Callable[..., Optimizer]] = {}


def recipe(function: Recipe) -> Recipe:
    """Make a function that returns an Optimizer known to `get`, under its own name."""
    _recipes[function.__name__] = function
    return function


def get(optimizer: str | Optimizer, **options: object) -> Optimizer:
    """The optimizer of that name: ``get("adamw", weight_decay=0.1)``. An Optimizer is returned as it is."""
    if isinstance(optimizer, Optimizer):
        if options:
            raise OnwardError(f"options {sorted(options)} go with the name of an optimizer, not with an Optimizer")
        return optimizer
    if optimizer not in _recipes:
        raise UnknownNameError(f"there is no optimizer {optimizer!r}; there are {', '.join(sorted(_recipes))}")
    return _recipes[optimizer](**options)


def names() -> list[str]:
    """The names that `get` knows."""
    return sorted(_recipes)


@recipe
def sgd(
    learning_rate: float = 1e-3,
    *,
    momentum: float = 0.0,
    dampening: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    clip: Clip = None,
    groups: Sequence[Group] = (),
) -> Optimizer:
    """p - lr g, or p - lr m with momentum m = momentum m + (1 - dampening) g; weight decay is added to g. As torch."""
    if nesterov and (momentum <= 0 or dampening != 0):
        raise OnwardError("Nesterov momentum needs a momentum and no dampening")
    moments = [trace(momentum, dampening=dampening, nesterov=nesterov)] if momentum else []
    steps = [add_decayed_weights(weight_decay), *moments, scale_by_learning_rate()]
    return _optimizer("sgd", learning_rate, steps, clip, groups)


@recipe
def adam(
    learning_rate: float = 1e-3,
    *,
    betas: Betas = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    amsgrad: bool = False,
    clip: Clip = None,
    groups: Sequence[Group] = (),
) -> Optimizer:
    """p - lr m^ / (sqrt(v^) + eps); weight decay is added to g. As torch.optim.Adam."""
    steps = [add_decayed_weights(weight_decay), scale_by_adam(*betas, eps, amsgrad=amsgrad), scale_by_learning_rate()]
    return _optimizer("adam", learning_rate, steps, clip, groups)


@recipe
def adamw(
    learning_rate: float = 1e-3,
    *,
    betas: Betas = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    amsgrad: bool = False,
    clip: Clip = None,
    groups: Sequence[Group] = (),
) -> Optimizer:
    """(1 - lr weight_decay) p - lr m^ / (sqrt(v^) + eps). As torch.optim.AdamW; compare `adamw_hf`."""
    steps = [scale_by_adam(*betas, eps, amsgrad=amsgrad), add_decayed_weights(weight_decay), scale_by_learning_rate()]
    return _optimizer("adamw", learning_rate, steps, clip, groups)


@recipe
def adamw_hf(
    learning_rate: float = 1e-3,
    *,
    betas: Betas = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    bias_correction: bool = True,
    clip: Clip = None,
    groups: Sequence[Group] = (),
) -> Optimizer:
    """p' = p - lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps), then p' - lr weight_decay p'.

    The AdamW of Hugging Face's transformers and of onnxruntime-training: eps is not corrected, and the decay comes
    after the update.
    """
    adam_part = scale_by_adam(*betas, eps, bias_correction=bias_correction, corrected_eps=False)
    steps = [adam_part, scale_by_learning_rate(), decay_after_update(weight_decay)]
    return _optimizer("adamw_hf", learning_rate, steps, clip, groups)


@recipe
def lamb(
    learning_rate: float = 1e-3,
    *,
    betas: Betas = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    bias_correction: bool = True,
    ratio_min: float = 0.0,
    ratio_max: float = math.inf,
    clip: Clip = None,
    groups: Sequence[Group] = (),
) -> Optimizer:
    """p - lr r d, d = m^ / (sqrt(v^) + eps) + weight_decay p, r = |p| / |d| within its bounds (1 where a norm is 0).

    The formula of the paper (You et al. 2020) with the norm itself for its phi, and of onnxruntime's LambOptimizer.
    """
    require("ratio_max", ratio_max, ratio_max >= ratio_min, f"at least ratio_min, {ratio_min}")
    steps = [
        scale_by_adam(*betas, eps, bias_correction=bias_correction),
        add_decayed_weights(weight_decay),
        scale_by_trust_ratio(ratio_min, ratio_max),
        scale_by_learning_rate(),
    ]
    return _optimizer("lamb", learning_rate, steps, clip, groups)


@recipe
def adamax(
    learning_rate: float = 2e-3,
    *,
    betas: Betas = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    clip: Clip = None,
    groups: Sequence[Group] = (),
) -> Optimizer:
    """p - lr m^ / u, u = max(b2 u, |g| + eps); weight decay is added to g. As torch."""
    steps = [add_decayed_weights(weight_decay), scale_by_adamax(*betas, eps), scale_by_learning_rate()]
    return _optimizer("adamax", learning_rate, steps, clip, groups)


@recipe
def adagrad(
    learning_rate: float = 1e-2,
    *,
    lr_decay: float = 0.0,
    weight_decay: float = 0.0,
    initial_accumulator_value: float = 0.0,
    eps: float = 1e-10,
    clip: Clip = None,
    groups: Sequence[Group] = (),
) -> Optimizer:
    """p - lr / (1 + (t - 1) lr_decay) g / (sqrt(sum of g²) + eps); weight decay is added to g. As torch."""
    steps = [
        add_decayed_weights(weight_decay),
        scale_by_rss(initial_accumulator_value, eps),
        scale_by_decayed_learning_rate(lr_decay),
    ]
    return _optimizer("adagrad", learning_rate, steps, clip, groups)


@recipe
def rmsprop(
    learning_rate: float = 1e-2,
    *,
    alpha: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    centered: bool = False,
    clip: Clip = None,
    groups: Sequence[Group] = (),
) -> Optimizer:
    """p - lr g / (sqrt(v) + eps), v the average of g² (less that of g, squared, when `centered`); weight decay is added
    to g. As torch, whose momentum comes after the division."""
    moments = [trace(momentum)] if momentum else []
    rms = scale_by_rms(alpha, eps, centered=centered)
    steps = [add_decayed_weights(weight_decay), rms, *moments, scale_by_learning_rate()]
    return _optimizer("rmsprop", learning_rate, steps, clip, groups)


@recipe
def adadelta(
    learning_rate: float = 1.0,
    *,
    rho: float = 0.9,
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    clip: Clip = None,
    groups: Sequence[Group] = (),
) -> Optimizer:
    """p - lr d, d = g sqrt(a + eps) / sqrt(v + eps), v and a averages of g² and d²; weight decay is added to g. As
    torch."""
    steps = [add_decayed_weights(weight_decay), scale_by_adadelta(rho, eps), scale_by_learning_rate()]
    return _optimizer("adadelta", learning_rate, steps, clip, groups)


@recipe
def lion(
    learning_rate: float = 1e-4,
    *,
    betas: Betas = (0.9, 0.99),
    weight_decay: float = 0.0,
    clip: Clip = None,
    groups: Sequence[Group] = (),
) -> Optimizer:
    """p - lr (sign(b1 m + (1 - b1) g) + weight_decay p), then m = b2 m + (1 - b2) g. Chen et al. 2023."""
    steps = [scale_by_lion(*betas), add_decayed_weights(weight_decay), scale_by_learning_rate()]
    return _optimizer("lion", learning_rate, steps, clip, groups)


def _optimizer(
    name: str, learning_rate: float, steps: list[Transformation], clip: Clip, groups: Sequence[Group]
) -> Optimizer:
    first = [clip] if isinstance(clip, Transformation) else []
    global_norm = None if clip is None or isinstance(clip, Transformation) else clip
    if global_norm is not None and not isinstance(global_norm, GlobalNorm):
        global_norm = GlobalNorm(float(global_norm))
    return Optimizer(chain(*first, *steps), name, learning_rate, global_norm, tuple(groups))

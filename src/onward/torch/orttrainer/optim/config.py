"""Which optimizer, with which settings: for all parameters, and for groups of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import IntEnum, unique
from typing import Any

from onward.torch.orttrainer.refusal import require

NAMES = ("AdamOptimizer", "LambOptimizer", "SGDOptimizer")
Group = dict[str, Any]


class _OptimizerConfig:
    """An optimizer and its settings.

    Args:
        name: "AdamOptimizer", "LambOptimizer" or "SGDOptimizer".
        params: groups of parameters, ``{"params": [names], setting: value}``, that have settings of their own; each is
            filled with the others, in place.
        defaults: the settings of all other parameters; `lr`, the learning rate, is one of them.
    """

    def __init__(self, name: str, params: list[Group], defaults: dict[str, Any]) -> None:
        require(isinstance(name, str), "'name' must be a string")
        require(name in NAMES, "'name' must be one of 'AdamOptimizer', 'LambOptimizer' or 'SGDOptimizer'")
        require(isinstance(defaults, dict), "'defaults' must be a dict")
        require("lr" in defaults, "'defaults' must contain a {'lr' : positive number} entry")
        lr = defaults["lr"]
        number = isinstance(lr, (int, float)) and not isinstance(lr, bool)
        require(number and 0 <= lr < math.inf, "lr must be a positive number")
        require(isinstance(params, list), "'params' must be a list")
        taken: set[str] = set()
        for group in params:
            require(
                isinstance(group, dict) and len(group) > 1 and "params" in group,
                "Each dict inside 'params' must contain a {'params' : [model parameter names]} entry and additional "
                "entries for custom hyper parameter values",
            )
            # A text has parts that are names, too.
            names = [] if isinstance(group["params"], str) else list(group["params"])
            require(
                bool(names) and all(isinstance(name, str) for name in names),
                f"'params' of a group must be a list of names of parameters, not {group['params']!r}",
            )
            twice = sorted(taken.intersection(names))
            require(not twice, f"{twice} are in more than one group of 'params'")
            taken.update(names)
            for key in group:
                require(
                    key == "params" or key in defaults,
                    f"'params' has {key!r} hyper parameter not present at 'defaults'",
                )
        self.name = name
        self.lr = lr
        self.base_lrs = [lr]
        self.defaults = defaults
        self.params: list[Group] = []
        for group in params:
            for key, value in defaults.items():
                group.setdefault(key, value)
            self.params.append(group)


class SGDConfig(_OptimizerConfig):
    """w - lr g. No momentum, no weight decay, no groups; gradients are not clipped."""

    def __init__(self, params: list[Group] = [], lr: float = 0.001) -> None:  # noqa: B006  (never written to)
        require(isinstance(params, list) and not params, "'params' must be an empty list for SGD optimizer")
        super().__init__("SGDOptimizer", params, {"lr": lr})


class AdamConfig(_OptimizerConfig):
    """Adam, with m = alpha m + (1 - alpha) g and v = beta v + (1 - beta) g².

    Attributes:
        lambda_coef: weight decay.
        max_norm_clip: the bound of the norm of all gradients together.
        weight_decay_mode: before the update, w - lr (m^ / (sqrt(v^) + epsilon) + lambda w), as torch's AdamW; or after,
            w' - lr lambda w', as Hugging Face's.
    """

    @unique
    class DecayMode(IntEnum):
        """When weights decay."""

        BEFORE_WEIGHT_UPDATE = 0
        AFTER_WEIGHT_UPDATE = 1

    def __init__(
        self,
        params: list[Group] = [],  # noqa: B006  (never written to)
        lr: float = 0.001,
        alpha: float = 0.9,
        beta: float = 0.999,
        lambda_coef: float = 0.0,
        epsilon: float = 1e-8,
        max_norm_clip: float = 1.0,
        do_bias_correction: bool = True,
        weight_decay_mode: DecayMode = DecayMode.BEFORE_WEIGHT_UPDATE,
    ) -> None:
        _require_positive(lr=lr, alpha=alpha, beta=beta, lambda_coef=lambda_coef, epsilon=epsilon)
        require(max_norm_clip != 0, "'max_norm_clip' must not be 0")
        _require_positive(max_norm_clip=max_norm_clip)
        require(isinstance(do_bias_correction, bool), "'do_bias_correction' must be a boolean")
        require(
            isinstance(weight_decay_mode, AdamConfig.DecayMode), "'weight_decay_mode' must be a AdamConfig.DecayMode"
        )
        _require_no_rates(params)
        settings = {
            "lr": lr,
            "alpha": alpha,
            "beta": beta,
            "lambda_coef": lambda_coef,
            "epsilon": epsilon,
            "max_norm_clip": max_norm_clip,
            "do_bias_correction": do_bias_correction,
            "weight_decay_mode": weight_decay_mode,
        }
        super().__init__("AdamOptimizer", params, settings)
        self.alpha, self.beta, self.lambda_coef, self.epsilon = alpha, beta, lambda_coef, epsilon
        self.max_norm_clip, self.do_bias_correction = max_norm_clip, do_bias_correction
        self.weight_decay_mode = weight_decay_mode


class LambConfig(_OptimizerConfig):
    """LAMB: w - lr r d, d = m^ / (sqrt(v^) + epsilon) + lambda w, r = |w| / |d| within its bounds, for each tensor."""

    def __init__(
        self,
        params: list[Group] = [],  # noqa: B006  (never written to)
        lr: float = 0.001,
        alpha: float = 0.9,
        beta: float = 0.999,
        lambda_coef: float = 0.0,
        ratio_min: float = -math.inf,
        ratio_max: float = math.inf,
        epsilon: float = 1e-6,
        max_norm_clip: float = 1.0,
        do_bias_correction: bool = False,
    ) -> None:
        _require_positive(lr=lr, alpha=alpha, beta=beta, lambda_coef=lambda_coef)
        require(isinstance(ratio_min, float), "'ratio_min' must be a valid float")
        require(isinstance(ratio_max, float), "'ratio_max' must be a valid float")
        _require_positive(epsilon=epsilon)
        require(max_norm_clip != 0, "'max_norm_clip' must not be 0")
        _require_positive(max_norm_clip=max_norm_clip)
        require(isinstance(do_bias_correction, bool), "'do_bias_correction' must be a boolean")
        _require_no_rates(params)
        settings = {
            "lr": lr,
            "alpha": alpha,
            "beta": beta,
            "lambda_coef": lambda_coef,
            "ratio_min": ratio_min,
            "ratio_max": ratio_max,
            "epsilon": epsilon,
            "max_norm_clip": max_norm_clip,
            "do_bias_correction": do_bias_correction,
        }
        super().__init__("LambOptimizer", params, settings)
        self.alpha, self.beta, self.lambda_coef, self.epsilon = alpha, beta, lambda_coef, epsilon
        self.ratio_min, self.ratio_max = ratio_min, ratio_max
        self.max_norm_clip, self.do_bias_correction = max_norm_clip, do_bias_correction


def _require_positive(**settings: float) -> None:
    for name, value in settings.items():
        require(value >= 0, f"'{name}' must be a positive number")


def _require_no_rates(params: list[Group]) -> None:
    for group in params:
        require(not isinstance(group, Mapping) or "lr" not in group, "'lr' is not supported inside params")

"""Optimizers as graphs, and learning rate schedules.

The names are loaded when they are first used: `onward.optim.schedules` has to be importable where onnx is not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward.optim.base import Context, Slot, Transformation, Update, chain
    from onward.optim.clipping import GlobalNorm, clip, clip_by_global_norm, clip_by_norm
    from onward.optim.groups import Group, no_decay
    from onward.optim.norm import sum_of_squares
    from onward.optim.optimizer import Optimizer
    from onward.optim.recipes import (
        adadelta,
        adagrad,
        adam,
        adamax,
        adamw,
        adamw_hf,
        get,
        lamb,
        lion,
        names,
        recipe,
        rmsprop,
        sgd,
    )
    from onward.optim.transformations import (
        add_decayed_weights,
        decay_after_update,
        scale,
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

__all__ = [
    "Context",
    "GlobalNorm",
    "Group",
    "Optimizer",
    "Slot",
    "Transformation",
    "Update",
    "adadelta",
    "adagrad",
    "adam",
    "adamax",
    "adamw",
    "adamw_hf",
    "add_decayed_weights",
    "chain",
    "clip",
    "clip_by_global_norm",
    "clip_by_norm",
    "decay_after_update",
    "get",
    "lamb",
    "lion",
    "names",
    "no_decay",
    "recipe",
    "rmsprop",
    "scale",
    "scale_by_adadelta",
    "scale_by_adam",
    "scale_by_adamax",
    "scale_by_decayed_learning_rate",
    "scale_by_learning_rate",
    "scale_by_lion",
    "scale_by_rms",
    "scale_by_rss",
    "scale_by_trust_ratio",
    "sgd",
    "sum_of_squares",
    "trace",
]

_MODULES = ("base", "clipping", "groups", "norm", "optimizer", "recipes", "transformations")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in (importlib.import_module(f"onward.optim.{part}") for part in _MODULES):
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module 'onward.optim' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

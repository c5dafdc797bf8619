"""Train any ONNX model on stock ONNX Runtime.

The public names are loaded when they are first used, so that ``import onward`` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward import (
        api,
        artifacts,
        callbacks,
        edge,
        federated,
        losses,
        metrics,
        onnxblock,
        optim,
        sklearn,
        testing,
        torch,
    )
    from onward.autodiff.custom import nondifferentiable, vjp
    from onward.autodiff.gradient import gradient
    from onward.errors import OnwardError
    from onward.head import NewHead, new_head
    from onward.inspection.check import check
    from onward.low_rank import Lora, lora
    from onward.step import initial_state, training_step
    from onward.trainer.trainer import Trainer

__version__ = "0.1.0"
__all__ = [
    "Lora",
    "NewHead",
    "OnwardError",
    "Trainer",
    "api",
    "artifacts",
    "callbacks",
    "check",
    "edge",
    "federated",
    "gradient",
    "initial_state",
    "lora",
    "losses",
    "metrics",
    "new_head",
    "nondifferentiable",
    "onnxblock",
    "optim",
    "session",
    "sklearn",
    "testing",
    "torch",
    "training_step",
    "vjp",
]

_HOMES = {
    "Lora": "onward.low_rank",
    "NewHead": "onward.head",
    "OnwardError": "onward.errors",
    "Trainer": "onward.trainer.trainer",
    "check": "onward.inspection.check",
    "gradient": "onward.autodiff.gradient",
    "initial_state": "onward.step",
    "lora": "onward.low_rank",
    "new_head": "onward.head",
    "nondifferentiable": "onward.autodiff.custom",
    "training_step": "onward.step",
    "vjp": "onward.autodiff.custom",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in __all__:
        return importlib.import_module(f"onward.{name}")
    raise AttributeError(f"module 'onward' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

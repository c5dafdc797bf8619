"""Optimizers and learning rate schedulers of ORTTrainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onward.torch.orttrainer.optim import config, lr_scheduler
from onward.torch.orttrainer.optim.config import AdamConfig, LambConfig, SGDConfig, _OptimizerConfig

if TYPE_CHECKING:
    from onward.torch.orttrainer.optim.fp16_optimizer import FP16_Optimizer
    from onward.torch.orttrainer.optim.fused_adam import AdamWMode, FusedAdam

__all__ = [
    "AdamConfig",
    "AdamWMode",
    "FP16_Optimizer",
    "FusedAdam",
    "LambConfig",
    "SGDConfig",
    "_OptimizerConfig",
    "config",
    "lr_scheduler",
]


def __getattr__(name: str) -> Any:  # what needs torch, when it is asked for
    if name in ("AdamWMode", "FusedAdam"):
        from onward.torch.orttrainer.optim import fused_adam

        return getattr(fused_adam, name)
    if name == "FP16_Optimizer":
        from onward.torch.orttrainer.optim.fp16_optimizer import FP16_Optimizer

        return FP16_Optimizer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

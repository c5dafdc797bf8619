"""Optimizers and learning rate schedulers of ORTTrainer."""

from __future__ import annotations

from onward.torch.orttrainer.optim import config, lr_scheduler
from onward.torch.orttrainer.optim.config import AdamConfig, LambConfig, SGDConfig, _OptimizerConfig

__all__ = ["AdamConfig", "LambConfig", "SGDConfig", "_OptimizerConfig", "config", "lr_scheduler"]

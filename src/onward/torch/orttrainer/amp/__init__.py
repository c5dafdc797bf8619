"""Loss scalers of ORTTrainer."""

from __future__ import annotations

from onward.torch.orttrainer.amp import loss_scaler
from onward.torch.orttrainer.amp.loss_scaler import DynamicLossScaler, LossScaler

__all__ = ["DynamicLossScaler", "LossScaler", "loss_scaler"]

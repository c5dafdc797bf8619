"""The training loop of `onnxruntime.training.api`: same names, signatures and meaning, on the stock onnxruntime.

Needs numpy and onnxruntime only, so that a device without onnx can train. What differs from the original: learning
rates are saved in checkpoints, `LinearLRScheduler` takes warm-up and total the right way round, buffers may be numpy
arrays, paths may be `pathlib.Path` everywhere, and where the original crashes there is an error. Clipping does not
change what `Parameter.grad` shows: the factor is applied while the update is computed.
"""

from __future__ import annotations

from onward.api.checkpoint_state import CheckpointState, Parameter, Parameters, Properties
from onward.api.lr_scheduler import (
    ConstantLRScheduler,
    CosineLRScheduler,
    ExponentialLRScheduler,
    LinearLRScheduler,
    LRScheduler,
    OneCycleLRScheduler,
    PolynomialLRScheduler,
    ReduceOnPlateauLRScheduler,
    StepLRScheduler,
)
from onward.api.module import Module
from onward.api.optimizer import Optimizer

__all__ = [
    "CheckpointState",
    "ConstantLRScheduler",
    "CosineLRScheduler",
    "ExponentialLRScheduler",
    "LRScheduler",
    "LinearLRScheduler",
    "Module",
    "OneCycleLRScheduler",
    "Optimizer",
    "Parameter",
    "Parameters",
    "PolynomialLRScheduler",
    "Properties",
    "ReduceOnPlateauLRScheduler",
    "StepLRScheduler",
]

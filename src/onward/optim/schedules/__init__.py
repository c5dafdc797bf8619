"""Learning rates as functions of the step: pure Python, so that a device without onnx can use them.

A schedule is called with the number of updates done so far (0 before the first) and returns the learning rate of the
next one. All but `ReduceOnPlateau` are plain values without state: they resume from the step alone. A warm-up need not
take a whole number of steps.
Formulas are those of torch.optim.lr_scheduler, and for warm-up those of onnxruntime-training and Hugging Face: the
first step of a warm-up has rate 0.
"""

from __future__ import annotations

from onward.optim.schedules.base import Schedule
from onward.optim.schedules.curve import (
    Constant,
    Cosine,
    CosineRestarts,
    Exponential,
    Linear,
    LinearFactor,
    MultiStep,
    OneCycle,
    Polynomial,
    Step,
    Warmup,
)
from onward.optim.schedules.plateau import ReduceOnPlateau
from onward.optim.schedules.registry import described, get, names, needs_total

__all__ = [
    "Constant",
    "Cosine",
    "CosineRestarts",
    "Exponential",
    "Linear",
    "LinearFactor",
    "MultiStep",
    "OneCycle",
    "Polynomial",
    "ReduceOnPlateau",
    "Schedule",
    "Step",
    "Warmup",
    "described",
    "get",
    "names",
    "needs_total",
]

"""Optimizers as blocks."""

from onward.onnxblock.optim.optim import (
    LAMB,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    ClipGradNorm,
    Lion,
    RecipeOptimizer,
    RMSprop,
    TorchAdamW,
)

__all__ = [
    "LAMB",
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "ClipGradNorm",
    "Lion",
    "RMSprop",
    "RecipeOptimizer",
    "TorchAdamW",
]

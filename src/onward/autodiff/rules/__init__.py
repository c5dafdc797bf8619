"""One module per family of operators; importing this package registers every rule."""

from onward.autodiff.rules import (
    arithmetic,
    constant,
    control_flow,
    dropout,
    loss,
    matmul,
    movement,
    normalization,
    pointwise,
    reduction,
    softmax,
)

__all__ = [
    "arithmetic",
    "constant",
    "control_flow",
    "dropout",
    "loss",
    "matmul",
    "movement",
    "normalization",
    "pointwise",
    "reduction",
    "softmax",
]

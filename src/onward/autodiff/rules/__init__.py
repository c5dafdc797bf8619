"""One module per family of operators; importing this package registers every rule."""

from onward.autodiff.rules import arithmetic, constant, control_flow, matmul, movement, pointwise, reduction

__all__ = ["arithmetic", "constant", "control_flow", "matmul", "movement", "pointwise", "reduction"]

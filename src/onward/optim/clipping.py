"""Clipping of gradients: each element, each tensor, or all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.optim.base import Context, Transformation, Update
from onward.optim.norm import norm
from onward.optim.scalar import Number, Scalar, minimum, number, sqrt

# Added to a norm before dividing by it, as torch and onnxruntime-training do.
_EPS = 1e-6


def clip(value: float) -> Transformation:
    """Each element to [-value, value], as torch.nn.utils.clip_grad_value_."""
    _require_positive("clip", value)

    def update(op: Builder, g: ir.Value, ctx: Context) -> ir.Value:
        return op.Clip(g, -float(value), float(value))

    return Transformation(update)


def clip_by_norm(max_norm: float) -> Transformation:
    """g min(1, max_norm / (|g| + 1e-6)) for each tensor by itself: torch's clip_grad_norm_ of one parameter."""
    _require_positive("clip_by_norm", max_norm)

    def update(op: Builder, g: Update, ctx: Context) -> Update:
        g = g.without_decay(ctx.p)
        length = norm(op, [g.direction]) * g.factor
        return g.times(minimum(1.0, max_norm / (length + _EPS)))

    return Transformation(update, elementwise=False, linear=True)


@dataclass(frozen=True)
class GlobalNorm:
    """All gradients times min(1, max_norm / (total + 1e-6)), total² the sum of squares of all their elements.

    The formula of torch.nn.utils.clip_grad_norm_ and of onnxruntime-training's ClipGradNorm. It needs all gradients
    together, so it is no transformation: whoever has them emits the coefficient once and gives it to
    `Optimizer.apply` as `grad_scale`.

    Finite gradients of any size are clipped. Those that are NaN or infinite have no norm: as with torch, whose
    `error_if_nonfinite` is off by default, what is updated becomes NaN; `onward.api.Optimizer` warns of it.
    """

    max_norm: float

    def __post_init__(self) -> None:
        _require_positive("clip_by_global_norm", self.max_norm)

    def coefficient(
        self, op: Builder, gradients: ir.Value | Sequence[ir.Value], grad_scale: ir.Value | float = 1.0
    ) -> ir.Value:
        """What to multiply every gradient with, `grad_scale` included, as a scalar.

        `grad_scale` is what the gradients are to be multiplied with anyway: one over the number of accumulated
        batches, or over the scale of the loss.
        """
        tensors = [gradients] if isinstance(gradients, ir.Value) else list(gradients)
        return self._coefficient(norm(op, tensors), number(op, grad_scale)).value

    def coefficient_of(self, op: Builder, squares: ir.Value, grad_scale: ir.Value | float = 1.0) -> ir.Value:
        """The same from the sum of squares, for those who add it up over chunks."""
        return self._coefficient(sqrt(number(op, squares)), number(op, grad_scale)).like(squares)

    def _coefficient(self, total: Number, scale: Number) -> Scalar:
        result = minimum(1.0, self.max_norm / (total * scale + _EPS)) * scale
        assert isinstance(result, Scalar)
        return result


def clip_by_global_norm(max_norm: float) -> GlobalNorm:
    """Clipping by the norm of all gradients together; a recipe takes it as `clip`."""
    return GlobalNorm(max_norm)


def _require_positive(what: str, bound: float) -> None:
    if not bound > 0:
        raise OnwardError(f"{what} needs a positive bound, not {bound}")

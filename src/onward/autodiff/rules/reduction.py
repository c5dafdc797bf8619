"""Reductions over axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from onward.autodiff.registry import vjp
from onward.graph.builder import Builder
from onward.graph.nodes import attribute, integers
from onward.graph.shapes import dims

Axes = tuple[int, ...] | ir.Value | None  # None: all of them


@dataclass(frozen=True)
class Reduction:
    """A forward node, with dy and y as if it had kept the reduced axes as size 1."""

    op: Builder
    x: ir.Value
    y: ir.Value
    dy: ir.Value
    axes: Axes
    noop: int

    def again(self, op_type: str, x: ir.Value) -> ir.Value:
        """Another reduction of a tensor like x over the same axes."""
        if self.axes == ():
            return x
        # An attribute that is not needed may not exist in the opset of the model.
        noop = {"noop_with_empty_axes": 1} if self.noop and isinstance(self.axes, ir.Value) else {}
        return self.op.emit(op_type, x, self.axes, keepdims=1, **noop)

    def expand(self, reduced: ir.Value) -> ir.Value:
        return reduced if self.axes == () else self.op.Expand(reduced, self.op.shape(self.x))

    def reciprocal_count(self) -> ir.Value | float:
        """One divided by the number of elements of x that make one of y."""
        op, x, axes = self.op, self.x, self.axes
        known = dims(x)
        if known is not None and not isinstance(axes, ir.Value):
            sizes = known if axes is None else [known[axis] for axis in axes]
            if all(isinstance(size, int) for size in sizes):
                return 1 / max(1, math.prod(size for size in sizes if isinstance(size, int)))
        count = op.Div(op.Size(x), op.Size(self.y)) if isinstance(axes, ir.Value) else op.size(x, axes)
        # The number may be too large for half precision, where its reciprocal is not.
        precision = ir.DataType.DOUBLE if x.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
        return op.cast(op.Reciprocal(op.cast(count, precision)), x.dtype)


def reduction(*op_types: str) -> Callable[[Callable[..., ir.Value]], Callable[..., ir.Value]]:
    """Declare a reduction by ``(op, r)``, where r is a Reduction."""

    def register(rule: Callable[..., ir.Value]) -> Callable[..., ir.Value]:
        @vjp(*op_types)
        def restored(op: Builder, node: ir.Node, dy: ir.Value) -> list[ir.Value | None]:
            x, y = node.inputs[0], node.outputs[0]
            axes, noop = integers(node, 1, "axes"), attribute(node, "noop_with_empty_axes", 0)
            if not isinstance(axes, ir.Value) and not axes:
                # Empty axes mean all of them, unless the node says that they mean none.
                axes = () if noop else None
            # A reduction of everything leaves a scalar, which broadcasts as it is.
            if (isinstance(axes, ir.Value) or axes) and not attribute(node, "keepdims", 1):
                dy, y = op.Unsqueeze(dy, axes), op.Unsqueeze(y, axes)
            return [rule(op, Reduction(op, x, y, dy, axes, noop))]

        return rule

    return register


@reduction("ReduceSum")
def reduce_sum(op: Builder, r: Reduction) -> ir.Value:
    return r.expand(r.dy)


@reduction("ReduceMean")
def reduce_mean(op: Builder, r: Reduction) -> ir.Value:
    return r.expand(r.dy * r.reciprocal_count())


@reduction("ReduceMax", "ReduceMin")
def reduce_extremum(op: Builder, r: Reduction) -> ir.Value:
    """Elements that tie share the cotangent evenly, as in torch's amax."""
    hit = op.cast(op.Equal(r.x, r.y), r.x.dtype)
    return hit * (r.dy / r.again("ReduceSum", hit))


@reduction("ReduceL1")
def reduce_l1(op: Builder, r: Reduction) -> ir.Value:
    return r.dy * op.Sign(r.x)


@reduction("ReduceL2")
def reduce_l2(op: Builder, r: Reduction) -> ir.Value:
    """x / |x|, and 0 where the norm is 0, as in torch."""
    zero = op.Equal(r.y, 0)
    return op.Where(zero, 0, r.dy / op.Where(zero, 1, r.y)) * r.x


@reduction("ReduceSumSquare")
def reduce_sum_square(op: Builder, r: Reduction) -> ir.Value:
    return r.dy * 2 * r.x


@reduction("ReduceLogSum")
def reduce_log_sum(op: Builder, r: Reduction) -> ir.Value:
    return r.expand(r.dy * op.Exp(-r.y))


@reduction("ReduceLogSumExp")
def reduce_log_sum_exp(op: Builder, r: Reduction) -> ir.Value:
    return r.dy * op.Exp(r.x - r.y)


@reduction("ReduceProd")
def reduce_prod(op: Builder, r: Reduction) -> ir.Value:
    """The product of the other elements, also where some are 0: with one zero only it has a slope, with two none.

    The second derivative is that of the function without zeros.
    """
    zero = op.Equal(r.x, 0)
    zeros = r.again("ReduceSum", op.cast(zero, r.x.dtype))
    nonzero = op.Where(zero, 1, r.x)
    others = r.again("ReduceProd", nonzero)
    alone = op.And(zero, op.Equal(zeros, 1))
    slope = op.Where(op.Equal(zeros, 0), others / nonzero, op.Where(alone, others, 0))
    return r.dy * slope

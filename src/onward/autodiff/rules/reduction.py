"""Reductions over axes."""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir

from onward.autodiff.registry import vjp
from onward.graph.builder import Builder
from onward.graph.nodes import attribute, integers
from onward.graph.shapes import dims

Axes = tuple[int, ...] | ir.Value | None  # None: all of them


def reduction(*op_types: str) -> Callable[[Callable[..., ir.Value]], Callable[..., ir.Value]]:
    """Declare a reduction by ``(op, dy, x, y, axes)``, where dy and y have kept the reduced axes as size 1."""

    def register(rule: Callable[..., ir.Value]) -> Callable[..., ir.Value]:
        @vjp(*op_types)
        def restored(op: Builder, node: ir.Node, dy: ir.Value) -> list[ir.Value | None]:
            x, y = node.inputs[0], node.outputs[0]
            axes = integers(node, 1, "axes")
            if not isinstance(axes, ir.Value) and not axes:
                # Empty axes mean all of them, unless the node says that they mean none.
                axes = () if attribute(node, "noop_with_empty_axes", 0) else None
            if not attribute(node, "keepdims", 1):
                dy, y = _unsqueezed(op, dy, x, axes), _unsqueezed(op, y, x, axes)
            return [rule(op, dy, x, y, axes)]

        return rule

    return register


def _unsqueezed(op: Builder, reduced: ir.Value, x: ir.Value, axes: Axes) -> ir.Value:
    # Over all axes, what is left is a scalar, which broadcasts as it is (and the rank of x need not be known).
    return reduced if axes is None or axes == () else op.Unsqueeze(reduced, axes)


def _expand(op: Builder, reduced: ir.Value, x: ir.Value, axes: Axes) -> ir.Value:
    return reduced if axes == () else op.Expand(reduced, op.shape(x))


def _count(op: Builder, x: ir.Value, y: ir.Value, axes: Axes) -> ir.Value | float:
    """How many elements of x make one of y."""
    if isinstance(axes, ir.Value):
        return op.cast(op.Div(op.Size(x), op.Size(y)), x.dtype)
    known = dims(x)
    sizes = None if known is None else known if axes is None else [known[axis] for axis in axes]
    if sizes is not None and all(isinstance(size, int) for size in sizes):
        return float(math.prod(size for size in sizes if isinstance(size, int)))
    return op.cast(op.size(x, axes), x.dtype)


@reduction("ReduceSum")
def reduce_sum(op: Builder, dy: ir.Value, x: ir.Value, y: ir.Value, axes: Axes) -> ir.Value:
    return _expand(op, dy, x, axes)


@reduction("ReduceMean")
def reduce_mean(op: Builder, dy: ir.Value, x: ir.Value, y: ir.Value, axes: Axes) -> ir.Value:
    return _expand(op, dy / _count(op, x, y, axes), x, axes)


@reduction("ReduceMax", "ReduceMin")
def reduce_extremum(op: Builder, dy: ir.Value, x: ir.Value, y: ir.Value, axes: Axes) -> ir.Value:
    """Elements that tie share the cotangent evenly, as in torch's amax."""
    hit = op.cast(op.Equal(x, y), x.dtype)
    return hit * (dy / _sum(op, hit, axes))


def _sum(op: Builder, x: ir.Value, axes: Axes) -> ir.Value:
    if axes == ():
        return x
    return op.ReduceSum(x, axes, keepdims=1)


@reduction("ReduceL1")
def reduce_l1(op: Builder, dy: ir.Value, x: ir.Value, y: ir.Value, axes: Axes) -> ir.Value:
    return dy * op.Sign(x)


@reduction("ReduceL2")
def reduce_l2(op: Builder, dy: ir.Value, x: ir.Value, y: ir.Value, axes: Axes) -> ir.Value:
    """x / |x|, and 0 where the norm is 0, as in torch."""
    return op.Where(op.Equal(y, 0), 0, dy / op.Where(op.Equal(y, 0), 1, y)) * x


@reduction("ReduceSumSquare")
def reduce_sum_square(op: Builder, dy: ir.Value, x: ir.Value, y: ir.Value, axes: Axes) -> ir.Value:
    return dy * x * 2


@reduction("ReduceLogSum")
def reduce_log_sum(op: Builder, dy: ir.Value, x: ir.Value, y: ir.Value, axes: Axes) -> ir.Value:
    return _expand(op, dy * op.Exp(-y), x, axes)


@reduction("ReduceLogSumExp")
def reduce_log_sum_exp(op: Builder, dy: ir.Value, x: ir.Value, y: ir.Value, axes: Axes) -> ir.Value:
    return dy * op.Exp(x - y)


@reduction("ReduceProd")
def reduce_prod(op: Builder, dy: ir.Value, x: ir.Value, y: ir.Value, axes: Axes) -> ir.Value:
    """The product of the other elements, also where some are 0: with one zero only it has a slope, with two none."""
    zero = op.Equal(x, 0)
    zeros = _sum(op, op.cast(zero, x.dtype), axes)
    nonzero = op.Where(zero, 1, x)
    others = nonzero if axes == () else op.ReduceProd(nonzero, axes, keepdims=1)
    alone = op.And(zero, op.Equal(zeros, 1))
    slope = op.Where(op.Equal(zeros, 0), others / nonzero, op.Where(alone, others, 0))
    return dy * slope

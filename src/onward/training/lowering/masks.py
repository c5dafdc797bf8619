"""Gradients of activations."""

from __future__ import annotations

import math
from collections.abc import Collection

import onnx_ir as ir

from onward.autodiff.rules.arithmetic import is_activation
from onward.graph.builder import Builder
from onward.graph.nodes import constant_of, input_at, standard_producer
from onward.training.mask import as_mask


def mask(op: Builder, node: ir.Node, steep: Collection[ir.Node] = ()) -> list[ir.Value] | None:
    """Where(mask, dy, 0) as dy times the mask: the gradient of Relu, and of Clip where it is an activation.

    onnxruntime's Where makes three passes by one thread. A masked infinity becomes a NaN, which is why this is for
    activations only: there, a cotangent that is not finite means that training has diverged already, unless one is
    `steep` (see `slopes`). Other rules, and models, use Where to keep what is not finite away.

    The mask is made from the result of the activation, so that nobody has to keep its input.
    """
    chosen, dy, other = node.inputs
    if chosen is None or dy is None or other is None or dy.dtype != ir.DataType.FLOAT:
        return None
    zero = constant_of(other)
    if zero is None or zero.size != 1 or zero.item() != 0:
        return None
    relu = _relu(chosen)
    if relu is not None:
        return None if relu in steep else [op.Mul(dy, _above_zero(op, relu.outputs[0]))]
    clip = _activation(chosen)
    if clip is None or clip in steep:
        return None
    y, high = clip.outputs[0], constant_of(input_at(clip, 2))
    masked = op.Mul(dy, _above_zero(op, y))
    return [masked if high is None else op.Mul(masked, _below(op, y, high.item()))]


def _above_zero(op: Builder, y: ir.Value) -> ir.Value:
    """1 where y is positive, in one pass; between 0 and 1 for numbers that are not normal, as y is all but 0 then."""
    return as_mask(op.HardSigmoid(y, alpha=2.0**126, beta=0.0))


def _below(op: Builder, y: ir.Value, bound: float) -> ir.Value:
    """1 where y is less than a positive bound, 0 where it is the bound: a power of 2 makes the difference, exactly."""
    steep = 2.0 ** min(120 - math.frexp(bound)[1], 126)
    return as_mask(op.HardSigmoid(y, alpha=-steep, beta=bound * steep))


def _relu(mask: ir.Value) -> ir.Node | None:
    """The Relu of whose result a mask is the cast to booleans."""
    cast = mask.producer()
    y = None if cast is None or cast.op_type != "Cast" else cast.inputs[0]
    relu = standard_producer(y)
    return relu if relu is not None and relu.op_type == "Relu" else None


def _activation(mask: ir.Value) -> ir.Node | None:
    """The Clip of which a mask says where its result is between the bounds of an activation."""
    above = mask.producer()
    if above is not None and above.op_type == "And":
        above = None if above.inputs[0] is None else above.inputs[0].producer()
    y = None if above is None or above.op_type != "Greater" else above.inputs[0]
    clip = standard_producer(y)
    if clip is None or clip.op_type != "Clip" or not is_activation(clip):
        return None
    high = constant_of(input_at(clip, 2))
    return clip if high is None or 2.0**-100 < high.item() < 2.0**100 else None

"""Bounds, axes, means and numbers where onnxruntime's kernels, or the exporter, take others than torch."""

from __future__ import annotations

import math
import re

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.constants import constant_array
from onward.graph.nodes import attribute, constant_of, input_at
from onward.graph.provenance.record import OPERATION, STACK

_NUMBER = re.compile(r"\(args = \((-?[\d.]+(?:e-?\d+)?),\)")


def double(op: Builder, node: ir.Node) -> ir.Value | None:
    """A number of the program, which the exporter has rounded to single precision."""
    number = _NUMBER.search(node.metadata_props.get(OPERATION, ""))
    is_double = node.outputs[0].dtype == ir.DataType.DOUBLE
    return op.constant(float(number[1]), ir.DataType.DOUBLE) if number is not None and is_double else None


def clip(op: Builder, node: ir.Node) -> ir.Value | None:
    """onnxruntime takes the largest finite number for a bound that is left out."""
    low, high = input_at(node, 1), input_at(node, 2)
    if low is not None and high is not None:
        return None
    dtype = node.outputs[0].dtype
    bounds = [
        op.constant(end, dtype) if bound is None else bound for bound, end in ((low, -math.inf), (high, math.inf))
    ]
    return op.Clip(node.inputs[0], *bounds)


def count_axes(op: Builder, node: ir.Node) -> None:
    """Axes from the first one on: onnxruntime leaves those that are counted from the last one in, if there is nothing.

    In place. The standard allows both.
    """
    x, axes = input_at(node, 0), constant_of(input_at(node, 1))
    is_reduction = node.domain == "" and node.op_type.startswith("Reduce")
    if is_reduction and x is not None and x.shape is not None and axes is not None and (axes < 0).any():
        node.replace_input_with(1, op.constant(axes % len(x.shape), ir.DataType.INT64))


def mean(op: Builder, node: ir.Node) -> ir.Value | None:
    """Of no elements, if data leave none: not a number, where onnxruntime's kernel gives 0."""
    x = node.inputs[0]
    if x is None or x.shape is None or not _follows_from_data(op.graph, x.shape):
        return None
    given = [value for value in node.inputs[1:] if value is not None]
    keepdims = attribute(node, "keepdims", 1)
    one = op.Expand(op.constant(1, x.dtype), op.Shape(x))
    return op.ReduceSum(x, *given, keepdims=keepdims) / op.ReduceSum(one, *given, keepdims=keepdims)


def _follows_from_data(graph: ir.Graph, shape: ir.Shape) -> bool:
    """Whether there is a size that those of inputs do not lead to."""
    symbols = {name for value in graph.inputs for name in _symbols(value.shape)}
    return not _symbols(shape) <= symbols


def _symbols(shape: ir.Shape | None) -> set[str]:
    sizes = [] if shape is None else [size for size in shape if not isinstance(size, int)]
    return {name for size in sizes for name in re.findall(r"[a-z]\w*", str(size.value))}


def adaptive_pool(op: Builder, node: ir.Node) -> ir.Value | None:
    """A pool over the whole image: one element has the gradient, where ReduceMax divides it among equal ones."""
    x, axes = node.inputs[0], constant_array(input_at(node, 1))
    if x is None or x.shape is None or axes is None or "adaptive_max_pool" not in node.metadata_props.get(STACK, ""):
        return None
    first = len(x.shape) - axes.size
    flat = op.Reshape(x, [0] * first + [-1])
    y = op.GatherElements(flat, op.ArgMax(flat, axis=first, keepdims=1), axis=first)
    return op.Unsqueeze(y, list(range(first + 1, len(x.shape)))) if axes.size > 1 else y

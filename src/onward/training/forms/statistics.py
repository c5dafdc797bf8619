"""Batch normalisation by statistics that cost less, or that the gradient can use."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from onward.autodiff.rules.window import known_sizes
from onward.graph.builder import Builder
from onward.graph.nodes import attribute, input_at
from onward.graph.shapes import dims, static_shape
from onward.training.forms.channels import is_pointwise

# A covariance pays where the convolution makes more channels out of fewer: so many times, at least.
_EXPANSION = 2
# It takes the square of the channels before, instead of several passes over the pixels of a batch.
_PIXELS_BY_SQUARE = 1 / 480


def batch_normalization(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """Batch normalisation in training: from the input of the convolution before it, or with the batch's statistics."""
    momentum = attribute(node, "momentum", 0.9)
    if not attribute(node, "training_mode", 0) or not momentum:
        return None
    convolution = _expansion_before(node)
    if convolution is not None:
        return _normalized_convolution(op, node, convolution, momentum)
    # With momentum 0 the operator returns mean and variance of the batch, which the gradient needs. onnxruntime writes
    # them where the given ones are, which must not be those of the state.
    unused = [statistic * 0 for statistic in node.inputs[3:]]
    options = {"epsilon": attribute(node, "epsilon", 1e-5), "momentum": 0.0, "training_mode": 1}
    y, *batch = op.BatchNormalization(*node.inputs[:3], *unused, **options, outputs=3)
    return [y, *_running(op, node, batch, momentum)]


def _running(op: Builder, node: ir.Node, batch: Sequence[ir.Value], momentum: float) -> list[ir.Value]:
    """momentum running + (1 - momentum) batch.

    By a single node, because a runtime may keep the new statistics where the old ones were.
    """
    one = op.constant([[1.0]], batch[0].dtype)
    return [
        op.Reshape(op.Gemm(one, op.Reshape(new, [1, -1]), old, alpha=1 - momentum, beta=momentum), [-1])
        for old, new in zip(node.inputs[3:], batch, strict=True)
    ]


def _expansion_before(node: ir.Node) -> ir.Node | None:
    """The convolution of one pixel each that makes many channels out of few, for a normalisation only."""
    x = node.inputs[0]
    conv, sizes = x.producer(), known_sizes((dims(x) or (None,) * 3)[2:])
    if conv is None or (conv.op_type, conv.domain) != ("Conv", "") or len(x.uses()) > 1 or x.is_graph_output():
        return None
    shape = static_shape(conv.inputs[1])
    if shape is None or sizes is None or len({value.dtype for value in (*conv.inputs, *node.inputs)}) > 1:
        return None
    pays = shape[0] >= _EXPANSION * shape[1] and math.prod(sizes) >= _PIXELS_BY_SQUARE * shape[1] ** 2
    return conv if is_pointwise(conv) and pays else None


def _normalized_convolution(op: Builder, node: ir.Node, conv: ir.Node, momentum: float) -> list[ir.Value]:
    """Of w x, the mean is w mean(x) and the variance w cov(x) w^T: known before the many channels of w x are.

    So the normalisation is a factor of w, and no pass over the result is needed, nor over its gradient. The rounding of
    the variance is relative to the variances of x; epsilon is larger.
    """
    x, w, shift = conv.inputs[0], conv.inputs[1], input_at(conv, 2)
    scale, bias = node.inputs[1:3]
    outputs, channels, *_ = static_shape(w) or ()
    axes = [0, 2, 3]
    mean = op.ReduceMean(x, axes, keepdims=1)
    center = x - mean
    rows = op.Reshape(op.Transpose(center, perm=[1, 0, 2, 3]), [channels, -1])
    weight = op.Reshape(w, [outputs, channels])
    spread = op.ReduceSum(op.Gemm(weight, op.Gemm(rows, rows, transB=1)) * weight, [1], keepdims=0)
    variance = spread / op.cast(op.size(x, axes), x.dtype)
    slope = scale / op.Sqrt(variance + attribute(node, "epsilon", 1e-5))
    y = op.Conv(center, op.Reshape(weight * op.Unsqueeze(slope, [1]), [outputs, channels, 1, 1]), bias)
    batch_mean = op.Reshape(op.Gemm(weight, op.Reshape(mean, [channels, 1])), [-1])
    return [y, *_running(op, node, [batch_mean if shift is None else batch_mean + shift, variance], momentum)]

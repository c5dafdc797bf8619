"""Batch normalisation by statistics that the gradient can use."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.nodes import attribute


def batch_normalization(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """Batch normalisation in training that returns the statistics of the batch, which the gradient needs.

    The statistics of a convolution could be had from those of its input, which has fewer channels; but where channels
    nearly depend on each other, their differences would be lost in the rounding of a covariance.
    """
    momentum = attribute(node, "momentum", 0.9)
    if not attribute(node, "training_mode", 0) or not momentum:
        return None
    # With momentum 0 the operator returns mean and variance of the batch. onnxruntime writes them where the given ones
    # are, which must not be those of the state.
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

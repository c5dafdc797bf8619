"""Batch normalisation that returns the statistics of its batch."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.nodes import attribute


def batch_normalization(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """With momentum 0 the operator returns mean and variance of the batch, which the gradient needs.

    The running statistics follow as momentum running + (1 - momentum) batch: by a single node, because a runtime may
    keep the new ones where the old ones were.
    """
    momentum, epsilon = attribute(node, "momentum", 0.9), attribute(node, "epsilon", 1e-5)
    if not attribute(node, "training_mode", 0) or not momentum:
        return None
    running = node.inputs[3:]
    # onnxruntime writes the statistics that it returns where the given ones are: they must not be those of the state.
    unused = [statistic * 0 for statistic in running]
    options = {"epsilon": epsilon, "momentum": 0.0, "training_mode": 1}
    y, *batch = op.BatchNormalization(*node.inputs[:3], *unused, **options, outputs=3)
    one = op.constant([[1.0]], batch[0].dtype)
    updated = [
        op.Reshape(op.Gemm(one, op.Reshape(new, [1, -1]), old, alpha=1 - momentum, beta=momentum), [-1])
        for old, new in zip(running, batch, strict=True)
    ]
    return [y, *updated]

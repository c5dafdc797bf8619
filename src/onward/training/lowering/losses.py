"""Losses."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.nodes import attribute, input_at
from onward.graph.shapes import Dim, dims, rank

_MANY_CLASSES = 1024


def softmax_cross_entropy(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """NLL(LogSoftmax(x)) for scores `[N, C]` of many classes.

    onnxruntime runs the loss as the standard's function, whose LogSoftmax goes over the middle axis of `[N, C, 1]`: by
    way of transposing, three times slower for large C. With few classes it does not matter, and people who migrate
    look for the node in the training graph.
    """
    scores = node.inputs[0]
    if scores is None or rank(scores) != 2 or not _is_large((dims(scores) or ())[1]):
        return None
    log_prob = op.LogSoftmax(scores, axis=1)
    options = {"reduction": attribute(node, "reduction", "mean"), "ignore_index": attribute(node, "ignore_index", None)}
    loss = op.NegativeLogLikelihoodLoss(log_prob, node.inputs[1], input_at(node, 2), **options)
    return [loss, log_prob]


def _is_large(classes: Dim) -> bool:
    return isinstance(classes, int) and classes >= _MANY_CLASSES

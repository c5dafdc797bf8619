"""Labels that are no class must not pass for one, nor one label for many."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.guard import is_guard
from onward.graph.nodes import attribute, input_at
from onward.graph.replacement import emitting_before
from onward.losses.activation import warn_of_activation
from onward.losses.target import checked_labels, class_indices, matched

_LOSSES = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")


def check_labels(op: Builder) -> None:
    """Let the standard's losses fail at run time for labels that are no class, and for too few or too many of them.

    onnxruntime would take -1 for the last class, and broadcast. The cost is two passes over the labels.
    """
    checked: dict[tuple[ir.Value, ir.Value, int | None], ir.Value] = {}
    for node in list(op.graph):
        scores, labels = input_at(node, 0), input_at(node, 1)
        if node.domain != "" or node.op_type not in _LOSSES or scores is None or labels is None:
            continue
        key = (labels, scores, attribute(node, "ignore_index", None))
        if key not in checked:
            with emitting_before(op, node):
                checked[key] = _checked(op, node, *key)
        node.replace_input_with(1, checked[key])


def _checked(op: Builder, node: ir.Node, labels: ir.Value, scores: ir.Value, ignore_index: int | None) -> ir.Value:
    if not is_guard(labels.producer()):  # the losses of `onward.losses` have compared them already
        warn_of_activation(node.op_type, scores)
        options = {"reduction": attribute(node, "reduction", "mean")}
        labels = matched(op, "labels", labels, class_indices, [scores], options)
    return checked_labels(op, labels, scores, ignore_index=ignore_index)

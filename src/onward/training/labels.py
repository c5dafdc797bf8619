"""Labels that are no class must not pass for one."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.nodes import attribute, input_at
from onward.graph.replacement import emitting_before
from onward.losses.base import checked_labels

_LOSSES = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")


def check_labels(op: Builder) -> None:
    """Let the standard's losses fail at run time for labels that are negative, as they do for those that are too large.

    onnxruntime would take -1 for the last class. The cost is two passes over the labels.
    """
    checked: dict[tuple[ir.Value, int | None], ir.Value] = {}
    for node in list(op.graph):
        labels = input_at(node, 1)
        if node.domain != "" or node.op_type not in _LOSSES or labels is None:
            continue
        key = (labels, attribute(node, "ignore_index", None))
        if key not in checked:
            with emitting_before(op, node):
                checked[key] = checked_labels(op, *key)
        node.replace_input_with(1, checked[key])

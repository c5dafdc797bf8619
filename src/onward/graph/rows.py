"""Cross entropy of a single row without an axis for it, which torch's exporters write as it is."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.inference import infer_shapes
from onward.graph.nodes import attribute
from onward.graph.replacement import replace_node

_LOSS = "SoftmaxCrossEntropyLoss"


def add_rows(model: ir.Model) -> bool:
    """Give cross entropies of scores `[C]` and a single label an axis of rows, in place; whether there are some.

    The standard's operator takes `[N, C]` and more, and onnxruntime refuses a model in which it does not.
    """
    losses = [node for node in model.graph if node.op_type == _LOSS and node.domain == ""]
    if any(node.inputs[0] is not None and node.inputs[0].shape is None for node in losses):
        infer_shapes(model)  # torch's older exporter says little
    found = [node for node in losses if _has_no_rows(node)]
    if found:
        op = Builder(model.graph, model.opset_imports[""])
        for node in found:
            replace_node(op, node, _with_a_row)
    return bool(found)


def _has_no_rows(node: ir.Node) -> bool:
    scores = node.inputs[0]
    return scores is not None and scores.shape is not None and len(scores.shape) == 1


def _with_a_row(op: Builder, node: ir.Node) -> list[ir.Value]:
    scores, label, *weight = node.inputs
    options = {name: attribute(node, name, None) for name in ("reduction", "ignore_index")}
    rows = [op.Unsqueeze(scores, [0]), op.Unsqueeze(label, [0])]
    loss, logarithms = op.SoftmaxCrossEntropyLoss(*rows, *weight, outputs=2, **options)
    return [op.reshape(loss, []), op.Squeeze(logarithms, [0])]

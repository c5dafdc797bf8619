"""What Dropout and BatchNormalization do when the model is trained."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onward.graph.nodes import constant_of, input_at
from onward.graph.provenance import is_from_torch
from onward.graph.provenance.changes import EXPORT
from onward.inspection.content import Mode
from onward.inspection.operators import node_name
from onward.training.modes import trains_batch_statistics

_EXPORT = f"; export by {EXPORT} to change that"


def modes_of(model: ir.Model) -> Iterator[Mode]:
    """Every Dropout and BatchNormalization of a prepared model."""
    opset = model.opset_imports.get("", 1)
    remedy = _EXPORT if is_from_torch(model) else ""
    for node in model.graph.all_nodes():
        if node.domain == "" and node.op_type == "Dropout":
            yield _dropout(node, remedy)
        elif node.domain == "" and node.op_type == "BatchNormalization":
            yield _batch_normalization(node, opset, remedy)


def _dropout(node: ir.Node, remedy: str) -> Mode:
    ratio, training = input_at(node, 1), input_at(node, 2)
    rate = constant_of(ratio)
    share = "0.5" if ratio is None else f"{float(rate.reshape(())):g}" if rate is not None else "a share"
    mode = constant_of(training)
    if training is not None and mode is None:
        effect = f"follows {training.name!r}; off in evaluation graphs"
        return Mode(node_name(node), "Dropout", "decided at run time", effect)
    if mode is not None and mode.all():
        effect = f"drops {share} of its input; off in evaluation graphs"
        return Mode(node_name(node), "Dropout", "training", effect)
    return Mode(node_name(node), "Dropout", "evaluation", f"does nothing, in training too{remedy}")


def _batch_normalization(node: ir.Node, opset: int, remedy: str) -> Mode:
    if trains_batch_statistics(node, opset):
        effect = "normalises by the batch and updates its running statistics, which evaluation graphs use"
        return Mode(node_name(node), "BatchNormalization", "training", effect)
    effect = f"normalises by its running statistics, which stay as they are{remedy}"
    return Mode(node_name(node), "BatchNormalization", "evaluation", effect)

"""Training and evaluation: what Dropout and BatchNormalization do in each."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.finish import publish, to_input
from onward.graph.guard import guarded_number
from onward.graph.nodes import attribute, input_at, is_used, take_over
from onward.graph.opsets import NeedsOpsetError
from onward.graph.replacement import emitting_after, emitting_before
from onward.graph.shapes import dims
from onward.graph.statistics import normalizes_by_the_batch

UPDATED = ".updated"  # what running statistics are called after the step
# In the metadata of a BatchNormalization: its running variance averages unbiased ones, as torch does and the standard
# does not.
UNBIASED = "onward.unbiased_variance"
_SEVERAL = "the batch norm of {statistic!r} needs more than one row, or pixel, to train"


def trains_batch_statistics(node: ir.Node, opset: int) -> bool:
    """Whether a BatchNormalization normalises by the statistics of its batch."""
    if node.op_type != "BatchNormalization" or node.domain != "":
        return False
    if opset < 14:
        return len(node.outputs) > 1  # then, the number of outputs said so
    return normalizes_by_the_batch(node)


def running_statistics(graph: ir.Graph, opset: int) -> set[ir.Value]:
    """The stored statistics that training BatchNormalizations change."""
    layers = [node for node in graph if trains_batch_statistics(node, opset)]
    found = (input_at(node, index) for node in layers for index in (3, 4))
    return {value for value in found if value is not None and value.is_initializer()}


def update_running_statistics(op: Builder) -> dict[str, str]:
    """Make the running statistics of training BatchNormalizations graph inputs, and their new values outputs.

    Returns the name of each statistic by that of its new value.
    """
    graph = op.graph
    latest: dict[ir.Value, ir.Value] = {}
    for node in graph:
        if not trains_batch_statistics(node, op.opset):
            continue
        if op.opset < 14:
            raise NeedsOpsetError("BatchNormalization", 14)
        for position in (1, 2):
            statistic = input_at(node, position + 2)
            if statistic is None or not statistic.is_initializer():
                continue
            # A layer that is used twice updates its statistics twice.
            node.replace_input_with(position + 2, latest.get(statistic, statistic))
            before = node.inputs[position + 2]
            latest[statistic] = op.forward_output(node, position)
            latest[statistic].shape = statistic.shape
            if position == 2 and node.metadata_props.get(UNBIASED) == "True":
                assert before is not None
                latest[statistic] = _unbiased(op, node, before, latest[statistic])
    links = {}
    for statistic, updated in latest.items():
        to_input(statistic)
        publish(updated, f"{statistic.name}{UPDATED}", graph)
        links[f"{statistic.name}{UPDATED}"] = statistic.name or ""
    return links


def _unbiased(op: Builder, node: ir.Node, before: ir.Value, after: ir.Value) -> ir.Value:
    """The running variance that torch has: the variance of the batch counts n / (n - 1) times, n elements a channel.

    onnxruntime writes the new variance where the given one is, unless it is an output of the graph. So the node is
    given zeros of its own, and what was before is added behind it.
    """
    x, momentum = node.inputs[0], attribute(node, "momentum", 0.9)
    assert x is not None
    with emitting_before(op, node):
        node.replace_input_with(4, before * 0)
    with emitting_after(op, node):
        count = op.Size(x) / op.Size(before)
        if not _has_several(x):
            count = guarded_number(op, count, op.Greater(count, 1), _SEVERAL.format(statistic=before.name))
        elements = op.Cast(count, to=before.dtype)
        corrected = after * (elements / (elements - 1))
        if momentum:  # else onnxruntime takes `before * 0` here for the zeros above, which it has written over
            corrected = before * momentum + corrected
    corrected.shape = before.shape
    return corrected


def _has_several(x: ir.Value) -> bool:
    """Whether there is surely more than one element for each channel, axis 1."""
    sizes: Sequence[int | str | None] = dims(x) or []
    return any(isinstance(size, int) and size > 1 for size in (*sizes[:1], *sizes[2:]))


def switch_to_evaluation(model: ir.Model) -> None:
    """Turn Dropout off and let BatchNormalization use its running statistics, in place, in subgraphs too."""
    opset = model.opset_imports[""]
    for node in model.graph.all_nodes():
        if node.domain != "":
            continue
        if node.op_type == "Dropout" and len(node.inputs) > 2:
            node.replace_input_with(2, None)
        elif trains_batch_statistics(node, opset):
            if opset >= 14:
                node.attributes["training_mode"] = ir.AttrInt64("training_mode", 0)
            _keep_statistics(node)
            # In evaluation the operator has one output; exporters list three.
            node.resize_outputs(1)


def _keep_statistics(node: ir.Node) -> None:
    """Let those who use the new statistics of a normalisation use the old ones, which evaluation does not change."""
    graph = node.graph
    assert graph is not None
    for old, new in zip(node.inputs[3:5], node.outputs[1:3], strict=False):
        if old is not None and is_used(new):
            same = ir.node("Identity", [old], name=f"{node.name}/{new.name}")
            graph.insert_after(node, same)
            take_over(new, same.outputs[0])


def keep_empty_training_mode(model: onnx.ModelProto) -> None:
    """Write Dropout's empty third input down, where serialization leaves it out.

    People who migrate look for it, to see that the evaluation graph does not drop anything.
    """
    for node in model.graph.node:
        if node.op_type == "Dropout" and len(node.input) == 2:
            node.input.append("")

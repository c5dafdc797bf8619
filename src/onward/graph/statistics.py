"""Running statistics as onnxruntime must have them, to normalise by the batch."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.nodes import attribute
from onward.graph.replacement import emitting_before


def own_statistics(model: ir.Model) -> None:
    """Give each BatchNormalization in training mode statistics that nobody else has, in place.

    onnxruntime writes the new statistics where the old ones are, also if these are constants: then they change from run
    to run. And of small equal constants it makes one, in a new layer of scale and variance, and of bias and mean: then
    it computes with the new statistics as scale and bias.
    """
    for graph in model.graphs():
        for node in [node for node in graph if normalizes_by_the_batch(node)]:
            op = Builder(graph, model.opset_imports[""])
            for index, statistic in _constant_statistics(node).items():
                with emitting_before(op, node):
                    own = statistic + _zero(op, node, statistic)
                own.shape = statistic.shape
                node.replace_input_with(index, own)


def overwritten_statistics(model: ir.Model) -> list[ir.Node]:
    """The nodes of which onnxruntime would change constants of the file that it runs."""
    return [node for node in model.graph.all_nodes() if normalizes_by_the_batch(node) and _constant_statistics(node)]


def _constant_statistics(node: ir.Node) -> dict[int, ir.Value]:
    return {
        index: value
        for index, value in enumerate(node.inputs[3:5], 3)
        if value is not None and value.is_initializer() and not value.is_graph_input()
    }


def normalizes_by_the_batch(node: ir.Node) -> bool:
    """Whether a BatchNormalization, since opset 14, is in training mode."""
    return node.op_type == "BatchNormalization" and node.domain == "" and attribute(node, "training_mode", 0) == 1


def _zero(op: Builder, node: ir.Node, like: ir.Value) -> ir.Value:
    """0 that follows from the data, whatever these are, so that onnxruntime does not compute with it beforehand."""
    assert like.dtype is not None
    first = op.cast(op.Slice(op.Reshape(node.inputs[0], [-1]), [0], [1], [0]), ir.DataType.FLOAT)
    return op.ReduceSum(op.cast(op.Greater(first, first), like.dtype), keepdims=0)

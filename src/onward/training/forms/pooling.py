"""Maxima of windows."""

from __future__ import annotations

import onnx_ir as ir

from onward.autodiff.rules.window import known_sizes
from onward.graph.builder import Builder
from onward.graph.inference import MISJUDGED
from onward.graph.nodes import attribute
from onward.graph.shapes import dims


def maximum(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """max(relu(x)) as relu(max(x)): the same, for fewer elements, and so is the gradient.

    Where all elements of a window are negative no gradient passes either way; elsewhere the largest is the same one.
    """
    x, y = node.inputs[0], node.outputs[0]
    known, pooled = known_sizes((dims(x) or (None,) * 2)[1:]), known_sizes((dims(y) or (None,) * 3)[2:])
    if any(output.name for output in node.outputs[1:]) or known is None or pooled is None:
        return None
    if attribute(node, "ceil_mode", 0) or y.meta.get(MISJUDGED):
        return None  # inference, which gives a new node its sizes, and onnxruntime may count windows differently
    if 0 in known + pooled:
        return None  # no number of images follows from that of no elements
    relu = x.producer()
    swap = relu is not None and (relu.op_type, relu.domain) == ("Relu", "") and _has_one_use(x)
    # As images of one channel: onnxruntime would move channels to the end and back, which takes longer than the maxima.
    images = op.Reshape(relu.inputs[0] if swap else x, [-1, 1, *known[1:]])
    largest = op.MaxPool(images, **{name: attr.value for name, attr in node.attributes.items()})
    result = op.Reshape(largest, [-1, known[0], *pooled])
    return [op.Relu(result) if swap else result]


def _has_one_use(x: ir.Value) -> bool:
    return len(x.uses()) == 1 and not x.is_graph_output()

"""Say again what size a result has, where onnx's inference gets it wrong: onnxruntime infers when it loads a model.

Gradients are computed with the true sizes; it would refuse to add a tensor of 5 elements to one that it takes for 4.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.guard import is_guard, unforeseen
from onward.graph.inference import MISJUDGED
from onward.graph.kernel_sizes import contradicts, is_pooling, plain_pooling, reaches_beyond_padding
from onward.graph.node_inference import inferred_types
from onward.graph.nodes import constant_of, input_at, is_used
from onward.graph.sequences import constant
from onward.graph.shapes import Dim, dims


def restate_sizes(model: ir.Model) -> None:
    """Put a Reshape to the true sizes behind each result whose sizes are misjudged, in place. It moves no data."""
    root = Builder(model.graph, model.opset_imports[""])
    for graph in (model.graph, *model.graph.subgraphs()):
        for node in list(graph):
            if reaches_beyond_padding(node):
                node.attributes.update(plain_pooling(node))
            if node.domain == "" and any(output.meta.get(MISJUDGED) for output in node.outputs):
                node.attributes.update(plain_pooling(node))
                if is_pooling(node) and _is_misjudged(node, root.opset):
                    _hide_sizes(root if graph is model.graph else root.subgraph(graph), node)
                shape = dims(node.outputs[0])
                for output in node.outputs:
                    if shape is not None and is_used(output):
                        _restate(output, shape, model.graph)


def _is_misjudged(node: ir.Node, opset: int) -> bool:
    """Whether onnx infers other sizes for a node, by itself, than are known to be true."""
    found, true = inferred_types(node, opset).get(node.outputs[0].name or ""), dims(node.outputs[0])
    shape = None if found is None else ir.serde.deserialize_type_proto_for_shape(found)
    if shape is None or true is None:
        return False
    return contradicts([size if isinstance(size, int) else size.value for size in shape], list(true))


def _hide_sizes(op: Builder, node: ir.Node) -> None:
    """Let onnxruntime know the sizes of what a node reads only when it runs, and so not misjudge those it makes.

    It plans its memory by what it infers, and then refuses buffers of other sizes.
    """
    x, graph = node.inputs[0], node.graph
    if x is None or x.shape is None or is_guard(x.producer()):
        return
    assert isinstance(graph, ir.Graph)
    last = graph[-1]
    with op, op.scope(f"{node.outputs[0].name}/sizes"):
        same = unforeseen(op, x)
    made = list(graph)[list(graph).index(last) + 1 :]
    graph.remove(made)
    graph.insert_before(node, made)
    node.replace_input_with(0, same)


def stated(value: ir.Value) -> ir.Value:
    """A result as others may read it: as it was stated again, where that was done."""
    shape = dims(value)
    if not value.meta.get(MISJUDGED) or shape is None:
        return value
    return next((reader.outputs[0] for reader in value.consumers() if _states(reader, _target(shape))), value)


def _restate(value: ir.Value, shape: tuple[Dim, ...], main: ir.Graph) -> None:
    target, node = _target(shape), value.producer()
    assert node is not None
    assert isinstance(node.graph, ir.Graph)
    if not target.any() or any(_states(reader, target) for reader in value.consumers()):
        return
    name = value.name
    value.name = f"{name}/misjudged"
    sizes = constant(f"{name}/true_shape", target, main)
    again = ir.node("Reshape", [], name=f"{name}/restated")
    node.graph.insert_after(node, again)
    stated = again.outputs[0]
    stated.type, stated.shape = value.type, ir.Shape(shape)
    ir.convenience.replace_all_uses_with(value, stated, replace_graph_outputs=True)
    again.resize_inputs(2)
    again.replace_input_with(0, value)
    again.replace_input_with(1, sizes)
    stated.name = name


def _target(shape: tuple[Dim, ...]) -> np.ndarray:
    # 0 stands for the size that the tensor has.
    return np.array([size if isinstance(size, int) else 0 for size in shape], np.int64)


def _states(reader: ir.Node, target: np.ndarray) -> bool:
    known = constant_of(input_at(reader, 1)) if reader.op_type == "Reshape" and reader.domain == "" else None
    return known is not None and np.array_equal(known, target)

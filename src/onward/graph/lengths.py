"""Lengths of sequences, as the kernels of all onnxruntimes take them."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.nodes import attribute, constant_of
from onward.graph.replacement import emitting_before
from onward.graph.shapes import dims


def avoid_empty_sequences(model: ir.Model) -> bool:
    """Have ReverseSequence turn one element round where it turns none, in place; says whether anything changed.

    Both copy a sequence as it is, but onnxruntime left out those of length 0 (until its pull request 28759): what it
    returned for them was in memory before.
    """
    root, changed = Builder(model.graph, model.opset_imports[""]), False
    for node in list(model.graph.all_nodes()):
        if node.op_type == "ReverseSequence" and node.domain == "":
            assert isinstance(node.graph, ir.Graph)
            op = root if node.graph is model.graph else root.subgraph(node.graph)
            changed |= _avoid_in(op, node)
    return changed


def _avoid_in(op: Builder, node: ir.Node) -> bool:
    x, lengths = node.inputs
    assert x is not None
    assert lengths is not None
    time, known = attribute(node, "time_axis", 0), constant_of(lengths)
    size = (dims(x) or (None,) * 2)[time]
    if size == 0 or (_is_avoided(lengths) if known is None else known.all()):
        return False
    with emitting_before(op, node):
        # One element, or none where there is none. (Max and Min take integers since opset 12 only.)
        one = 1 if isinstance(size, int) else op.cast(op.cast(op.dim(x, time), ir.DataType.BOOL), ir.DataType.INT64)
        node.replace_input_with(1, op.Where(op.Equal(lengths, 0), one, lengths))
    return True


def _is_avoided(lengths: ir.Value) -> bool:
    """Whether an earlier preparation of the same model wrote these."""
    where = lengths.producer()
    empty = where.inputs[0].producer() if where and where.op_type == "Where" and where.inputs[0] else None
    if where is None or empty is None or empty.op_type != "Equal" or empty.inputs[0] is not where.inputs[2]:
        return False
    zero, one = constant_of(empty.inputs[1]), constant_of(where.inputs[1])
    return zero is not None and not zero.any() and (one is None or bool(one.all()))

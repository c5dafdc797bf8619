"""Chunks of an axis whose size varies: torch writes them as a sequence, which cannot leave a graph."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph.inference import infer_shapes
from onward.graph.nodes import attribute, constant_of
from onward.graph.sequences import constant, insert


def slice_chunks(model: ir.Model) -> None:
    """Take parts of equal length straight from the tensor, in place; the model is prepared.

    Only for what `torch.export` wrote: a part that is not there would be empty here, and an error in a sequence. torch
    has counted the parts, and its guards say for which sizes.
    """
    changed = False
    for node in list(model.graph):
        if node.op_type != "SplitToSequence" or node.domain != "" or len(node.inputs) < 2:
            continue
        length = node.inputs[1]
        takers = [use.node for use in node.outputs[0].uses()]
        positions = [_position(taker) for taker in takers]
        if length is None or length.shape is None or len(length.shape) != 0 or None in positions:
            continue
        for taker, position in zip(takers, positions, strict=True):
            assert position is not None
            _slice(node, taker, position, model.graph)
        model.graph.remove(node, safe=True)
        changed = True
    if changed:
        infer_shapes(model)


def _position(taker: ir.Node) -> int | None:
    index = constant_of(taker.inputs[1]) if taker.op_type == "SequenceAt" else None
    return None if index is None or index < 0 else int(index)


def _slice(node: ir.Node, taker: ir.Node, position: int, graph: ir.Graph) -> None:
    x, length = node.inputs[:2]
    part = taker.outputs[0]
    assert x is not None
    assert length is not None
    name = f"{part.name}/chunk"
    flat = insert(taker, "Reshape", [length, constant(f"{name}/one", np.array([1]), graph)], f"{name}/length")
    start, end = (
        insert(taker, "Mul", [flat, constant(f"{name}/number_{number}", np.array([number]), graph)], f"{name}/{number}")
        for number in (position, position + 1)
    )
    axis = constant(f"{name}/axis", np.array([attribute(node, "axis", 0)]), graph)
    found = insert(taker, "Slice", [x, start, end, axis], name)
    found.type, found.shape = part.type, part.shape
    ir.convenience.replace_all_uses_with(part, found, replace_graph_outputs=True)
    graph.remove(taker, safe=True)

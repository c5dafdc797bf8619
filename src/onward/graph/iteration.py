"""A loop over a number of elements, whose step is a Python function."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.nodes import used_values
from onward.graph.opsets import NeedsOpsetError

Step = Callable[[Builder, ir.Value, Sequence[ir.Value]], Sequence[ir.Value]]

SINCE = 13  # the opset since which a Loop carries sequences


def iterate(op: Builder, count: ir.Value | int, start: Sequence[ir.Value], step: Step) -> list[ir.Value]:
    """``carried = step(op, index, carried)`` for each index; what is carried keeps its type.

    What depends on neither is computed once, before the loop.
    """
    if op.opset < SINCE:
        raise NeedsOpsetError("Loop over a sequence", SINCE)
    index = ir.Value(name=op.unique_name("index"), type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
    go_on = ir.Value(name=op.unique_name("go_on"), type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
    carried = [ir.Value(name=op.unique_name("carried"), type=value.type, shape=value.shape) for value in start]
    graph = ir.Graph([index, go_on, *carried], [], nodes=[], name=op.unique_name("body"))
    inner = op.subgraph(graph)
    with inner:
        results = list(step(inner, index, carried))
        still = inner.Identity(go_on)
    still.type, still.shape = go_on.type, go_on.shape
    for result, value in zip(results, start, strict=True):
        result.type, result.shape = value.type, value.shape
    graph.outputs.extend([still, *results])
    _hoist(graph, op.graph)
    limit = op.constant(count, ir.DataType.INT64) if isinstance(count, int) else count
    ends = op.Loop(limit, op.constant(True), *start, body=graph, outputs=len(start))
    ends = [ends] if len(start) == 1 else list(ends)
    for end, value in zip(ends, start, strict=True):
        end.type, end.shape = value.type, value.shape
    return ends


def _hoist(body: ir.Graph, outer: ir.Graph) -> None:
    """Move nodes that depend on nothing inside of the loop to the end of the outer graph."""
    inside = set(body.inputs)
    for node in list(body):
        stays = any(value in inside for value in used_values(node))
        if stays or any(value.is_graph_output() for value in node.outputs):
            inside.update(node.outputs)
        else:
            body.remove(node)
            outer.append(node)

"""A choice at run time between two computations, each a Python function."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onward.graph.builder import Builder

Branch = Callable[[Builder], ir.Value]


def branch(op: Builder, condition: ir.Value, then: Branch, otherwise: Branch) -> ir.Value:
    """``then(op)`` where the condition, a boolean of one element, is true; else ``otherwise(op)``, of the same type."""
    graphs = [_body(op, "then", then), _body(op, "else", otherwise)]
    result = op.If(condition, then_branch=graphs[0], else_branch=graphs[1])
    first = graphs[0].outputs[0]
    result.type, result.shape = first.type, first.shape
    return result


def _body(op: Builder, name: str, emit: Branch) -> ir.Graph:
    graph = ir.Graph([], [], nodes=[], name=op.unique_name(name))
    inner = op.subgraph(graph)
    with inner:
        graph.outputs.append(emit(inner))
    return graph

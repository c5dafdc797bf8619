"""Put other nodes in the place of one node."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.nodes import take_over

# What a node is replaced by: a value for each output that is used, or None where the node is better as it is.
Replacement = Callable[[Builder, ir.Node], "Sequence[ir.Value] | None"]


@contextlib.contextmanager
def emitting_before(op: Builder, node: ir.Node) -> Iterator[None]:
    """Put what is emitted inside before a node, and name it after that."""
    with _emitting(op, node) as emitted:
        yield
    op.graph.insert_before(node, emitted)


@contextlib.contextmanager
def emitting_after(op: Builder, node: ir.Node) -> Iterator[None]:
    """Put what is emitted inside behind a node, and name it after that."""
    with _emitting(op, node) as emitted:
        yield
    op.graph.insert_after(node, emitted)


@contextlib.contextmanager
def _emitting(op: Builder, node: ir.Node) -> Iterator[list[ir.Node]]:
    """Take what is emitted inside from the end of the graph; it is in the list afterwards."""
    graph, emitted = op.graph, list[ir.Node]()
    last = graph[-1]
    with op, op.scope(node.name or node.op_type):
        yield emitted
    while graph[-1] is not last:
        emitted.insert(0, graph[-1])
        graph.remove(graph[-1])


def replace_node(op: Builder, node: ir.Node, replacement: Replacement) -> bool:
    """Emit a replacement of `node`, if there is one; its values take over the names of the outputs."""
    with emitting_before(op, node):
        values = replacement(op, node)
    if values is None:
        return False
    for old, new in zip(node.outputs, values, strict=False):
        take_over(old, new)
    op.graph.remove(node, safe=True)
    return True

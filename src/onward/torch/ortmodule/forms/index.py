"""Indices that torch refuses, and graphs would take: those that count from the end."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.guard import guarded_all
from onward.graph.nodes import input_at
from onward.graph.provenance.record import OPERATION
from onward.graph.replacement import emitting_before

# Operator -> operations of torch that take no negative indices, where ONNX does.
_COUNTED_FROM_0 = {
    "Gather": ("aten.embedding.", "aten.index_select."),
    "GatherElements": ("aten.gather.",),
    "ScatterElements": ("aten.scatter.", "aten.scatter_add.", "aten.scatter_reduce.", "aten.index_add."),
}


def guard_indices(op: Builder, node: ir.Node) -> None:
    """Let a node fail, in place, where torch does: torch runs what a graph could not, and says what is wrong."""
    record = node.metadata_props.get(OPERATION, "")
    index = input_at(node, 1)
    if node.domain != "" or index is None or index.is_initializer():
        return
    if any(operation in record for operation in _COUNTED_FROM_0.get(node.op_type, ())):
        with emitting_before(op, node):
            checked = guarded_all(op, index, op.Less(index, 0), f"indices {index.name!r} are not negative")
        node.replace_input_with(1, checked)

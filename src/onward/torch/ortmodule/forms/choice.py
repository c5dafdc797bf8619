"""Which form an operation gets, and how it takes its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.provenance.record import OPERATION
from onward.graph.replacement import replace_node

Form = Callable[[Builder, ir.Node], "ir.Value | None"]
# By the operation of torch, and the last operator that it is written by.
Forms = Mapping[tuple[str, str], Form]


def form_of(node: ir.Node, forms: Forms) -> Form | None:
    record = node.metadata_props.get(OPERATION, "")
    for (operation, op_type), form in forms.items():
        if node.op_type == op_type and operation in record:
            return form
    return None


def replace_by(op: Builder, node: ir.Node, form: Form) -> None:
    """Put a form in the place of a node, if there is one for it."""

    def replacement(op: Builder, node: ir.Node) -> list[ir.Value] | None:
        value = form(op, node)
        return None if value is None else [value]

    replace_node(op, node, replacement)

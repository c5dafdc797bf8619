"""Replace operators by the function body that the ONNX standard gives for them."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx.inliner
import onnx_ir as ir

from onward.graph.opsets import NeedsOpsetError, schema
from onward.graph.skeleton import restore_weights, skeleton


def has_body(node: ir.Node, opset: int) -> bool:
    """Whether the standard defines this operator by a function of simpler operators."""
    if node.domain != "":
        return False
    try:
        spec = schema(node.op_type, opset)
    except (NeedsOpsetError, ValueError):
        return False
    # onnx's stubs do not list these two.
    return spec.has_function or spec.has_context_dependent_function  # type: ignore[attr-defined]


def expand(model: ir.Model, op_types: Iterable[str]) -> ir.Model:
    """The model with every node of these default-domain operators replaced by its standard function body."""
    functions = [("", op_type) for op_type in sorted(set(op_types))]
    proto = onnx.inliner.inline_selected_functions(skeleton(model), functions, inline_schema_functions=True)
    return restore_weights(proto, model)

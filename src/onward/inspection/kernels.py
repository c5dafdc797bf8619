"""What can be differentiated, but not run: types that onnxruntime has hardly any kernels for."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.nodes import subgraphs
from onward.inspection.content import Blocker

# The operators that onnxruntime 1.31 runs on bfloat16 on a CPU; the providers of other devices have more.
_RUN_ON_BFLOAT16 = frozenset(
    "Cast Concat Flatten Gather Identity Reshape Shape Slice Squeeze Transpose Unsqueeze".split()
)


def missing_kernels(model: ir.Model) -> list[Blocker]:
    """What to say of a model that computes with bfloat16."""
    found = [node for node in model.graph.all_nodes() if _computes_with_bfloat16(node)]
    if not found:
        return []
    operators = ", ".join(sorted({node.op_type for node in found}))
    return [
        Blocker(
            "type",
            f"onnxruntime has no kernels on a CPU that compute with bfloat16 ({operators})",
            "Export the model in float32. Weights may stay bfloat16 where a Cast makes float of them before they are "
            "used. On another device, its execution provider decides.",
            nodes=[node.name or node.outputs[0].name or "?" for node in found],
        )
    ]


def _computes_with_bfloat16(node: ir.Node) -> bool:
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    computes = node.domain == "" and node.op_type not in _RUN_ON_BFLOAT16 and not subgraphs(node)
    return computes and any(value.dtype == ir.DataType.BFLOAT16 for value in values)

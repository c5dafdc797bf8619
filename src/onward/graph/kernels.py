"""What can be differentiated, but not run: types that onnxruntime has hardly any kernels for."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.nodes import subgraphs

# The operators that onnxruntime 1.31 runs on bfloat16 on a CPU; the providers of other devices have more.
_RUN_ON_BFLOAT16 = frozenset(
    "Cast Concat Flatten Gather Identity Reshape Shape Slice Squeeze Transpose Unsqueeze".split()
)


def computing_with_bfloat16(model: ir.Model) -> list[ir.Node]:
    """The nodes that compute with bfloat16, which no kernel on a CPU does."""
    return [node for node in model.graph.all_nodes() if _computes_with_bfloat16(node)]


def refusal_of_bfloat16(nodes: list[ir.Node]) -> str:
    """What to say of them."""
    operators = ", ".join(sorted({node.op_type for node in nodes}))
    return f"onnxruntime has no kernels on a CPU that compute with bfloat16 ({operators})"


def _computes_with_bfloat16(node: ir.Node) -> bool:
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    computes = node.domain == "" and node.op_type not in _RUN_ON_BFLOAT16 and not subgraphs(node)
    return computes and any(value.dtype == ir.DataType.BFLOAT16 for value in values)

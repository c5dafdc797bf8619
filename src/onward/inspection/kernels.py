"""What can be differentiated, but not run."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.kernels import computing_with_bfloat16, refusal_of_bfloat16
from onward.inspection.content import Blocker


def missing_kernels(model: ir.Model) -> list[Blocker]:
    """What to say of a model that computes with bfloat16."""
    found = computing_with_bfloat16(model)
    if not found:
        return []
    return [
        Blocker(
            "type",
            refusal_of_bfloat16(found),
            "Export the model in float32. Weights may stay bfloat16 where a Cast makes float of them before they are "
            "used. On another device, its execution provider decides.",
            nodes=[node.name or node.outputs[0].name or "?" for node in found],
        )
    ]

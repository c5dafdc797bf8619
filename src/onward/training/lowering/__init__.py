"""Other ways to write the same computation, chosen because onnxruntime runs them faster.

Values are preserved, as far as they are finite; every test also passes without. Runs last, when gradients exist
already, and on graphs that train: those for evaluation stay as people wrote them.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.replacement import Replacement, replace_node
from onward.training.lowering import losses, masks, pooling, reductions, slices

_LOWERINGS: dict[str, Replacement] = {"SoftmaxCrossEntropyLoss": losses.softmax_cross_entropy}
# Of nodes that we have written ourselves.
_BACKWARD_LOWERINGS: dict[str, Replacement] = {
    "Add": slices.tiles,
    "ReduceSum": reductions.sum_of_rows,
    "ScatterElements": pooling.scattered_maximum,
    "Sum": slices.tiles,
    "Where": masks.mask,
}


def lower(op: Builder, forward: Collection[ir.Node] = ()) -> None:
    """Replace nodes of the graph of `op`, in place; `forward` are those of the user's model."""
    for node in list(op.graph):
        known = _LOWERINGS if node in forward else {**_LOWERINGS, **_BACKWARD_LOWERINGS}
        lowering = known.get(node.op_type) if node.domain == "" else None
        if lowering is not None:
            replace_node(op, node, lowering)

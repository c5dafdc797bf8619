"""The order in which nodes are written, which decides when onnxruntime runs them.

onnxruntime goes backward through a graph, from the results written last to those written first, and from every node to
its inputs in the same way; a node runs when all of its inputs have run. What is written late therefore runs early:

- A gradient shall run as soon as there is what it needs, so that this can be forgotten. Gradients of the last layers,
  ready first, are written last.
- What only the forward pass is needed for (a mask, say) shall wait for the gradient that it meets: both are in the
  cache then, and nothing has to be kept. So it is written before that gradient.

Both follow from one rule: nodes are written by the depth of the deepest result that needs them, deepest first, and
among equals by their own depth.
"""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.cleanup import remove_unused
from onward.graph.nodes import used_values


def write_in_order_of_use(model: ir.Model) -> None:
    """Sort the nodes that are used, in place, and remove the others."""
    remove_unused(model)
    graph = model.graph
    nodes = list(graph)
    inputs = {node: [_producer(value, graph) for value in used_values(node)] for node in nodes}
    depth: dict[ir.Node, int] = {}
    for node in nodes:
        depth[node] = 1 + max((depth[before] for before in inputs[node] if before is not None), default=0)
    last_use = dict(depth)
    for node in reversed(nodes):
        for before in inputs[node]:
            if before is not None:
                last_use[before] = max(last_use[before], last_use[node])
    graph.remove(nodes)
    graph.extend(sorted(nodes, key=lambda node: (-last_use[node], depth[node])))


def _producer(value: ir.Value, graph: ir.Graph) -> ir.Node | None:
    node = value.producer()
    return node if node is not None and node.graph is graph else None

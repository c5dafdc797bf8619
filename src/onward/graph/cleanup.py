"""Remove what no output of a model depends on.

onnx_ir has a pass for this; it also drops trailing empty inputs and `training_mode=0` attributes, which people who
migrate from onnxruntime-training look for in evaluation graphs.
"""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.nodes import subgraphs


def remove_unused(model: ir.Model) -> None:
    """Remove unused nodes (in subgraphs too), initializers and opset imports, in place."""
    _remove_unused_nodes(model.graph)
    for value in list(model.graph.initializers.values()):
        if not (value.uses() or value.is_graph_output() or value.is_graph_input()):
            del model.graph.initializers[value.name or ""]
    domains = {node.domain for node in model.graph.all_nodes()}
    for domain in [domain for domain in model.opset_imports if domain not in domains | {""}]:
        del model.opset_imports[domain]


def _remove_unused_nodes(graph: ir.Graph) -> None:
    for node in reversed(graph):
        if any(output.uses() or output.is_graph_output() for output in node.outputs):
            for body in subgraphs(node):
                _remove_unused_nodes(body)
        else:
            _remove(graph, node)


def _remove(graph: ir.Graph, node: ir.Node) -> None:
    """Remove a node and what is in its bodies, so that these use nothing any more."""
    for body in subgraphs(node):
        body.outputs.clear()
        for inner in reversed(list(body)):
            _remove(body, inner)
    graph.remove(node, safe=True)

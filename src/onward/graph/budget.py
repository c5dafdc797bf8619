"""What a model may cost before anything of it is looked at: hostile files are small and ask for much.

Everything that follows is proportional to the number of nodes, so it is enough to limit what multiplies them.
"""

from __future__ import annotations

import onnx_ir as ir

from onward.errors import InvalidModelError
from onward.graph.nodes import subgraphs

MOST_NODES = 100_000  # that functions may become, and 20 for each node of the file: layers are called many times
DEEPEST = 64  # of bodies in bodies, and of functions that call functions


def check_budget(model: ir.Model) -> None:
    """An error for a model whose functions, written out, or whose bodies in bodies are too many."""
    counts: dict[tuple[str, str, str], int] = {}
    total = _count(model, model.graph, counts, 0)
    graphs = (model.graph, *(function.graph for function in model.functions.values()))
    most = MOST_NODES + 20 * sum(_own(graph) for graph in graphs)
    if counts and total > most:
        raise InvalidModelError(
            f"the functions of the model, written out where they are called, have {total:,} nodes, and onward takes "
            f"{most:,}: functions that call functions multiply. Export the model without them."
        )


def _own(graph: ir.Graph) -> int:
    """The nodes of a graph and of the bodies in it."""
    return sum(1 + sum(_own(body) for body in subgraphs(node)) for node in graph)


def _count(model: ir.Model, graph: ir.Graph, counts: dict[tuple[str, str, str], int], depth: int) -> int:
    """The nodes of a graph with those of its bodies and of the functions that it calls."""
    if depth > DEEPEST:
        raise InvalidModelError(f"the bodies or functions of the model are nested more than {DEEPEST} deep")
    total = 0
    for node in graph:
        total += 1 + sum(_count(model, body, counts, depth + 1) for body in subgraphs(node))
        key = node.op_identifier()
        function = model.functions.get(key)
        if function is not None:
            if key not in counts:
                counts[key] = 0  # of one that calls itself, which the checker refuses
                counts[key] = _count(model, function.graph, counts, depth + 1)
            total += counts[key]
    return total

"""Parameters whose values say nothing about a graph, because they change."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import onnx_ir as ir

from onward.graph.shapes import is_floating

# In the metadata of an initializer that its owner may change between two runs, whole numbers too.
CHANGES = "onward.changes"


@contextmanager
def changing(graph: ir.Graph, names: Collection[str | None]) -> Iterator[None]:
    """Inside, initializers of these names are inputs with a default: nobody takes them for constants.

    Else the gradient of `Pow(x, exponent)` would be that of the exponent before the first step, for ever. Whole numbers
    do not change, nor what sizes are computed from: rules have to know them.
    """
    values = [
        value
        for name, value in graph.initializers.items()
        if name in names and is_floating(value) and not value.is_graph_input() and not _decides_sizes(value)
    ]
    graph.inputs.extend(values)
    try:
        yield
    finally:
        for value in values:
            graph.inputs.remove(value)


def _decides_sizes(value: ir.Value) -> bool:
    return any(use.node.op_type in ("Resize", "Upsample") and use.idx > 0 for use in value.uses())

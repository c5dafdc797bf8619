"""The names taken in a graph that grows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx


class Names:
    """The names taken in a graph. Only what was added since the last question is read, unless something went away."""

    def __init__(self) -> None:
        self._found: set[str] = set()
        self._given: set[str] = set()
        self._read = (0, 0, 0)

    def has(self, name: str, graph: onnx.GraphProto) -> bool:
        self._refresh(graph)
        if name in self._found:
            return True
        # Whoever renames something in the middle leaves no other trace.
        self._read = (0, 0, 0)
        self._refresh(graph)
        return name in self._found

    def take(self, name: str, graph: onnx.GraphProto) -> bool:
        """Reserve a name; False where it is taken."""
        self._refresh(graph)
        if name in self._found or name in self._given:
            return False
        self._given.add(name)
        return True

    def _refresh(self, graph: onnx.GraphProto) -> None:
        sizes = (len(graph.node), len(graph.input), len(graph.initializer))
        if any(now < before for now, before in zip(sizes, self._read, strict=True)) or self._read == (0, 0, 0):
            self._found, self._read = set(), (0, 0, 0)
        nodes, inputs, initializers = self._read
        self._found.update(_names_of(graph.node[nodes:]))
        self._found.update(value.name for value in graph.input[inputs:])
        self._found.update(tensor.name for tensor in graph.initializer[initializers:])
        self._read = sizes


def _names_of(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    for node in nodes:
        yield from node.output
        if node.name:
            yield node.name
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from (value.name for value in attribute.g.input)
                yield from _names_of(attribute.g.node)

"""Read nodes: attributes, constants, descriptions for errors, and what subgraphs capture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import onnx_ir as ir

from onward.errors import InvalidModelError

T = TypeVar("T")


def attribute(node: ir.Node, name: str, default: T) -> T:
    """The value of an attribute, or `default` (the standard's) when the node does not set it."""
    found = node.attributes.get(name)
    if found is None or found.value is None:
        return default
    if found.type in (ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS):
        return tuple(found.value)  # type: ignore[return-value]
    return found.value


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """An input of a node, None when it is absent."""
    return node.inputs[index] if index < len(node.inputs) else None


def constant_of(value: ir.Value | None) -> np.ndarray | None:
    """The array behind a value that no caller can override, else None."""
    if value is None or not value.is_initializer() or value.is_graph_input() or value.const_value is None:
        return None
    return value.const_value.numpy()


def integers(node: ir.Node, index: int, name: str) -> tuple[int, ...] | ir.Value | None:
    """A list that is an attribute in old opsets and an input in new ones (axes, split, pads ...).

    Integers when they are known, the value when they are computed at run time, None when they are not given.
    """
    if name in node.attributes:
        listed: tuple[int, ...] = attribute(node, name, ())
        return tuple(int(element) for element in listed)
    value = input_at(node, index)
    if value is None:
        return None
    known = constant_of(value)
    return value if known is None else tuple(int(element) for element in known.reshape(-1))


def standard_producer(value: ir.Value | None) -> ir.Node | None:
    """The node that computes a value, if it is of the standard: other domains may give a name another meaning."""
    node = None if value is None else value.producer()
    return None if node is None or node.domain != "" else node


def describe(node: ir.Node) -> str:
    """How errors name a node."""
    domain = f"{node.domain}." if node.domain else ""
    name = node.name or next((output.name for output in node.outputs), None)
    return f"{domain}{node.op_type} node {name!r}"


def subgraphs(node: ir.Node) -> list[ir.Graph]:
    """The graphs in the attributes of a node."""
    found: list[ir.Graph] = []
    for attr in node.attributes.values():
        if attr.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            continue
        if attr.is_ref():
            raise InvalidModelError(
                f"{describe(node)} takes {attr.name!r} from an attribute of the function that it is in; onward reads "
                "graphs only where they are. Export the model without functions."
            )
        if attr.type == ir.AttributeType.GRAPH:
            found.append(attr.as_graph())
        else:
            found.extend(attr.as_graphs())
    return found


def captured_values(node: ir.Node) -> Iterator[ir.Value]:
    """The outer values that the subgraphs of a node use, each once."""
    seen: set[ir.Value] = set()
    for graph in subgraphs(node):
        inside = {graph, *graph.subgraphs()}
        used = [value for inner in graph.all_nodes() for value in inner.inputs]
        for value in (*used, *graph.outputs):
            if value is not None and value.graph not in inside and value not in seen:
                seen.add(value)
                yield value


def used_values(node: ir.Node) -> Iterator[ir.Value]:
    """All values a node depends on: its inputs and what its subgraphs capture."""
    yield from (value for value in node.inputs if value is not None)
    yield from captured_values(node)


def all_values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Every value of a graph and of its subgraphs."""
    for current in (graph, *graph.subgraphs()):
        yield from current.inputs
        yield from current.initializers.values()
        for node in current:
            yield from node.outputs


def outer_values(graph: ir.Graph) -> dict[str, ir.Value]:
    """The values outside of subgraphs, by name: what is inside of one, but for constants, has no one value."""
    inner = (output for node in graph for output in node.outputs)
    return {value.name: value for value in (*graph.inputs, *graph.initializers.values(), *inner) if value.name}


def is_integer_arithmetic(node: ir.Node) -> bool:
    """Whether a node computes with quantised numbers as they are; onnxruntime's own operators have such names too."""
    return node.op_type in ("ConvInteger", "MatMulInteger") or node.op_type.startswith("QLinear")


def is_used(value: ir.Value) -> bool:
    """Whether a node or the border of a graph uses a value."""
    return bool(value.uses()) or value.is_graph_output()


def take_over(old: ir.Value, new: ir.Value) -> None:
    """Give `new` the name, the type and the users of `old`; what is not known of `old` stays as it is."""
    name, old.name = old.name, None
    new.name, new.type = name or new.name, old.type or new.type
    if old.shape is not None:
        new.shape = old.shape.copy()
    new.meta.update(old.meta)
    new.metadata_props.update(old.metadata_props)
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)

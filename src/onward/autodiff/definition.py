"""Rules from definitions: say what an operator computes in terms of simpler ones, and their gradient is its gradient.

The forward node stays as it is; its definition is only traced to be differentiated, so a gradient that needs no more
than the indices of a gather, say, computes no more than those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from onward.autodiff.registry import vjp
from onward.autodiff.sweep import backpropagate
from onward.graph.builder import Builder
from onward.graph.inference import infer_shapes
from onward.graph.nodes import constant_of
from onward.graph.shapes import is_floating, is_placeholder

Definition = Callable[[Builder, ir.Node], ir.Value | Sequence[ir.Value | None]]

# Inference numbers the dimensions that it does not know, anew in each run. Those of the outer graph get another prefix
# while a definition is traced, so that they stay themselves, also as factors.
_UNKNOWN, _OUTER = "unk__", "outer__unk__"


def defined(*op_types: str, domain: str = "") -> Callable[[Definition], Definition]:
    """Declare operators by a definition ``(op, node) -> outputs``; None for an output without derivative."""

    def register(definition: Definition) -> Definition:
        def rule(op: Builder, node: ir.Node, *dys: ir.Value | None) -> list[ir.Value | None]:
            return differentiate(op, node, definition, dys)

        vjp(*op_types, domain=domain)(rule)
        return definition

    return register


def differentiate(
    op: Builder, node: ir.Node, definition: Definition, dys: Sequence[ir.Value | None]
) -> list[ir.Value | None]:
    """The cotangents of the inputs of a node: its definition traced and differentiated in a graph of its own."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": op.opset}, name="definition")
    outer: dict[ir.Value, ir.Value] = {}

    def stand_in(value: ir.Value, name: str) -> ir.Value:
        constant = constant_of(value)
        copy = ir.Value(name=name, type=value.type, shape=_protected(value.shape))
        if constant is None:
            graph.inputs.append(copy)
        else:
            copy.const_value = value.const_value
            graph.register_initializer(copy)
        outer[copy] = value
        return copy

    inputs = [None if x is None else stand_in(x, f"input_{index}") for index, x in enumerate(node.inputs)]
    copy = ir.Node(node.domain, node.op_type, inputs, node.attributes.values(), name=node.name)
    inner = op.aside(graph)
    with inner:
        results = definition(inner, copy)
    for index in range(len(inputs)):
        copy.replace_input_with(index, None)
    outputs = [results] if isinstance(results, ir.Value) else list(results)
    pairs = [(y, dy) for y, dy in zip(outputs, dys, strict=False) if y is not None and dy is not None]
    graph.outputs.extend(y for y, _ in pairs)
    infer_shapes(ir.Model(graph, ir_version=10))
    graph.outputs.clear()
    seeds = {y: stand_in(dy, f"cotangent_{index}") for index, (y, dy) in enumerate(pairs)}
    targets = [x for x in inputs if x is not None and is_floating(x)]
    cotangents = dict(zip(targets, backpropagate(inner, graph, seeds, targets), strict=True))
    found = [None if x is None else cotangents.get(x) for x in inputs]
    _move(op, graph, outer)
    return [None if dx is None else outer.get(dx, dx) for dx in found]


def _move(op: Builder, graph: ir.Graph, outer: Mapping[ir.Value, ir.Value]) -> None:
    """Append the nodes of `graph` to the graph of `op`, with outer values and constants in place of the stand-ins."""
    for constant in list(graph.initializers.values()):
        if constant not in outer:
            tensor = constant.const_value
            assert tensor is not None
            constant.replace_all_uses_with(op.constant(tensor.numpy(), tensor.dtype))
    for copy, value in outer.items():
        copy.replace_all_uses_with(value)
    for inner in graph.subgraphs():
        for value in inner.inputs:
            value.name, value.shape = op.unique_name(value.name or "input"), _restored(value.shape)
    for node in graph.all_nodes():
        node.name = op.unique_name(node.name or node.op_type)
        for index, output in enumerate(node.outputs):
            output.name = op.unique_name(f"{node.name}.{index}") if index else node.name
            output.shape = _restored(output.shape)
    nodes = list(graph)
    graph.remove(nodes)
    for node in nodes:
        op.graph.append(node)


def _protected(shape: ir.Shape | None) -> ir.Shape | None:
    if shape is None:
        return None
    names = [dim if isinstance(dim, int) else dim.value for dim in shape]
    return ir.Shape([n.replace(_UNKNOWN, _OUTER) if isinstance(n, str) else n for n in names])


def _restored(shape: ir.Shape | None) -> ir.Shape | None:
    """The dimensions that the definition has not in common with the outer graph become unknown."""
    if shape is None:
        return None
    names = [dim if isinstance(dim, int) else dim.value for dim in shape]
    known = [None if is_placeholder(name) else name for name in names]
    return ir.Shape([name.replace(_OUTER, _UNKNOWN) if isinstance(name, str) else name for name in known])

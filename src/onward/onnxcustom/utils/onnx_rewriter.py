"""Put graphs in the place of nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx

from onward.errors import OnwardError
from onward.onnxcustom.training.excs import WrongValueError


def _unique_name(existing_names: set[str], name: str) -> str:
    """`name`, or the first of `name_2`, `name_3`... that is free; it is taken from now on."""
    free, count = name, 1
    while free in existing_names:
        count += 1
        free = f"{name}_{count}"
    existing_names.add(free)
    return free


def _existing_names(onx: onnx.ModelProto | onnx.GraphProto) -> set[str]:
    """All names of values in a graph and in the graphs inside it."""
    graph = onx.graph if isinstance(onx, onnx.ModelProto) else onx
    names = {value.name for value in (*graph.input, *graph.output, *graph.initializer)}
    for node in graph.node:
        names.update(node.input, node.output)
        for body in _bodies(node):
            names |= _existing_names(body)
    return names


def _bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    graphs = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    return graphs + [graph for attribute in node.attribute for graph in attribute.graphs]


def onnx_rewrite_operator(
    onx: Any, op_type: str, sub_onx: onnx.ModelProto, recursive: bool = True, debug_info: Any = None
) -> Any:
    """A copy of a model (or of a graph) with a graph in the place of every node of an operator.

    Args:
        sub_onx: a model whose inputs and outputs stand for those of the node, in order.
        recursive: in the bodies of If, Loop and Scan too.
        debug_info: not used.
    """
    copy = type(onx)()
    copy.CopyFrom(onx)
    graph = copy.graph if isinstance(copy, onnx.ModelProto) else copy
    _rewrite(graph, op_type, sub_onx.graph, recursive, _existing_names(graph))
    return copy


def _rewrite(graph: onnx.GraphProto, op_type: str, body: onnx.GraphProto, recursive: bool, names: set[str]) -> None:
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == op_type:
            initializers, replacing = _instance(node, body, names)
            graph.initializer.extend(initializers)
            nodes.extend(replacing)
            continue
        if recursive:
            for inner in _bodies(node):
                _rewrite(inner, op_type, body, recursive, names)
        nodes.append(node)
    # Copies: the elements of a repeated field are gone when it is emptied.
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)


def _instance(
    node: onnx.NodeProto, body: onnx.GraphProto, names: set[str]
) -> tuple[list[onnx.TensorProto], list[onnx.NodeProto]]:
    """The initializers and nodes of `body` in the place of `node`, under names that are free."""
    for what, mine, theirs in (("inputs", node.input, body.input), ("outputs", node.output, body.output)):
        if len(mine) != len(theirs):
            raise WrongValueError(
                f"the graph that replaces {node.op_type} has {len(theirs)} {what}, the node {node.name!r} {len(mine)}"
            )
    renamed = dict(zip((value.name for value in (*body.input, *body.output)), (*node.input, *node.output), strict=True))
    initializers = []
    for initializer in body.initializer:
        tensor = onnx.TensorProto.FromString(initializer.SerializeToString())
        tensor.name = renamed[initializer.name] = _unique_name(names, initializer.name)
        initializers.append(tensor)
    for name in dict.fromkeys(name for inner in body.node for name in inner.output if name):
        renamed.setdefault(name, _unique_name(names, name))
    return initializers, [_renamed(inner, renamed) for inner in body.node]


def _renamed(node: onnx.NodeProto, renamed: Mapping[str, str]) -> onnx.NodeProto:
    copy = onnx.NodeProto.FromString(node.SerializeToString())
    if _bodies(copy):
        raise WrongValueError(f"the graph that replaces an operator has a node {node.op_type} with a body of its own")
    copy.ClearField("name")
    copy.input[:] = [renamed.get(name, name) for name in node.input]
    copy.output[:] = [renamed.get(name, name) for name in node.output]
    return copy


def unreduced_onnx_loss(onx: onnx.ModelProto, output_name: str = "score") -> onnx.ModelProto:
    """The loss of every row: `onx` without the one node that adds them up, and without what nobody else needs.

    Raises:
        RuntimeError: where there is not exactly one such node.
    """
    reducing = [node for node in onx.graph.node if node.op_type.startswith("Reduce")]
    if len(reducing) != 1:
        found = [(node.op_type, node.name) for node in reducing]
        raise OnwardError(f"a loss has one node that reduces it; found were {len(found)}: {found}")
    node = reducing[0]
    square = node.op_type == "ReduceSumSquare"
    if not square and node.op_type != "ReduceSum":
        raise OnwardError(
            f"{node.op_type} cannot be taken apart; a loss is a ReduceSum or a ReduceSumSquare of its rows"
        )
    nodes = _needed_for(onx.graph, node.input[0])
    names = _existing_names(onx)
    name = _unique_name(names - {value.name for value in onx.graph.output}, output_name)
    rows = node.input[0]
    nodes.append(onnx.helper.make_node(*(("Mul", [rows, rows]) if square else ("Identity", [rows])), [name]))
    copy = onnx.ModelProto()
    copy.CopyFrom(onx)
    used = {name for inner in nodes for name in inner.input}
    kept = [tensor for tensor in onx.graph.initializer if tensor.name in used]
    inputs = [value for value in onx.graph.input if value.name in used]
    kind = onx.graph.output[0].type.tensor_type.elem_type
    output = onnx.helper.make_tensor_value_info(name, kind, [None, None])
    copy.graph.CopyFrom(onnx.helper.make_graph(nodes, onx.graph.name, inputs, [output], kept))
    return copy


def _needed_for(graph: onnx.GraphProto, name: str) -> list[onnx.NodeProto]:
    """The nodes that a value is computed by."""
    wanted, nodes = {name}, []
    for node in reversed(graph.node):
        if wanted & set(node.output):
            wanted |= set(node.input) | {used for body in _bodies(node) for used in _existing_names(body)}
            nodes.append(node)
    return nodes[::-1]

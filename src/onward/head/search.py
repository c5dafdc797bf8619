"""Find the layer that makes scores of classes: the last product with a weight before the outputs."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import NoReturn

import onnx_ir as ir

from onward.errors import OnwardError, UnknownNameError
from onward.graph.nodes import describe, subgraphs
from onward.head.layer import Layer, is_product, layer_of, layers_of, refusal_of

_NAMED = "name one as `layer`, by its node, its weight or its output"


def last_layer(graph: ir.Graph) -> Layer:
    """The layer that all outputs come out of; where it cannot be told, an error that says which could be meant."""
    origins = {output: _last_products(output) for output in graph.outputs}
    reached: dict[ir.Node, list[str]] = {}
    for output, nodes in origins.items():
        for node in nodes:
            reached.setdefault(node, []).append(output.name or "")
    layers = {node: layer_of(node) for node in reached}
    found = [layer for layer in layers.values() if layer is not None]
    # Other outputs may be states: results of an LSTM, or of attention.
    if len(found) == 1 and all(len(nodes) == 1 for nodes in origins.values() if found[0].node in nodes):
        return found[0].require_replaceable()
    if len(reached) == 1:
        _refuse(graph, _none(*reached))
    if not reached:
        _refuse(graph, "no output of the model comes out of a layer with a weight")
    several = "; ".join(
        f"{', '.join(map(repr, outputs))} comes out of {layers[node] or describe(node)}"
        for node, outputs in reached.items()
    )
    _refuse(graph, f"the model has several last layers: {several}", [layer for layer in layers.values() if layer])


def named_layer(graph: ir.Graph, name: str) -> Layer:
    """The layer with a node, a weight, a bias or a result of that name."""
    known = list(layers_of(graph))
    found = [layer for layer in known if layer.node.name == name] or [layer for layer in known if name in layer.names]
    if len(found) == 1:
        return found[0].require_replaceable()
    if found:
        nodes = ", ".join(repr(layer.node.name or layer.node.outputs[0].name) for layer in found)
        raise OnwardError(f"`layer` is {name!r}, which belongs to several layers; name one of the nodes {nodes}")
    other = next((node for node in graph if name in (node.name, *(value.name for value in node.outputs))), None)
    if other is not None:
        _refuse(graph, f"`layer` is {name!r}, which is no layer with a weight of its own but {describe(other)}")
    names = [each for layer in known for each in layer.names]
    near = difflib.get_close_matches(name, names, n=1)
    meant = f"is {near[0]!r} meant? " if near else ""
    raise UnknownNameError(f"`layer` is {name!r}, which the model does not have; {meant}{_listed(known)}")


def _last_products(output: ir.Value) -> list[ir.Node]:
    """The products, and nodes with branches, that an output comes out of without another one in between."""
    found: dict[ir.Node, None] = {}
    seen: set[ir.Value] = set()
    waiting = [output]
    while waiting:
        value = waiting.pop()
        node = value.producer()
        if value in seen or node is None or node.op_type in ("Shape", "Size", "Constant"):
            continue
        seen.add(value)
        if is_product(node) or subgraphs(node):
            found[node] = None
        else:
            waiting.extend(reversed([x for x in node.inputs if x is not None]))
    return list(found)


def _none(node: ir.Node) -> str:
    reason = refusal_of(node)
    if reason is not None:
        return f"the outputs come out of {describe(node)}: {reason}"
    return f"the outputs come out of {describe(node)}, which is no layer with a constant weight"


def _refuse(graph: ir.Graph, what: str, likely: Sequence[Layer] = ()) -> NoReturn:
    known = likely or [layer for layer in layers_of(graph) if layer.refusal is None]
    raise OnwardError(f"which layer makes the scores of classes cannot be told: {what}. {_listed(known)}")


def _listed(layers: Sequence[Layer]) -> str:
    """What could be meant, the last first."""
    if not layers:
        return "The model has no Gemm, MatMul or Conv with a constant weight"
    shown = "; ".join(map(str, list(layers)[:-11:-1]))
    more = f"; and {len(layers) - 10} before them" if len(layers) > 10 else ""
    return f"These layers could be meant ({_NAMED}): {shown}{more}"

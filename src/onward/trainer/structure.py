"""The layers of a model: its nodes, put together to what a reader calls a layer."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence

import onnx

from onward.report.content import Layer, Structure, Weight

_PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose")  # what a bias may be added to
_SETTING = 8  # constants of so few elements are axes, shapes and bounds


def structure_of(
    model: onnx.ModelProto, inputs: Sequence[str], outputs: Sequence[str], kinds: Mapping[str, str]
) -> Structure:
    """What a model is made of, as far as `outputs` need it; `kinds` says what becomes of each parameter."""
    graph = model.graph
    nodes = _needed(graph, outputs)
    shapes = {value.name: _shape(value) for value in (*graph.input, *graph.value_info, *graph.output)}
    weights = {tensor.name: Weight(tensor.name, "constant", tuple(tensor.dims)) for tensor in graph.initializer}
    for name, kind in kinds.items():
        shape = weights[name].shape if name in weights else tuple(d for d in shapes.get(name) or () if type(d) is int)
        weights[name] = Weight(name, kind, shape)
    gathering = _Gathering(weights, shapes)
    for node in nodes:
        gathering.add(node)
    described = [f"{name} {_written(shapes.get(name))}" for name in inputs]
    ends = [f"{name} {_written(shapes.get(name))}" for name in outputs]
    return Structure(described, gathering.layers(), ends, len(nodes))


def _needed(graph: onnx.GraphProto, outputs: Iterable[str]) -> list[onnx.NodeProto]:
    """The nodes that compute these values, in their order."""
    wanted, kept = set(outputs), []
    for node in reversed(graph.node):
        if wanted.intersection(node.output):
            wanted.update(_inputs(node))
            kept.append(node)
    return kept[::-1]


def _inputs(node: onnx.NodeProto) -> list[str]:
    """What a node reads, in its branches too."""
    names = list(node.input)
    for attribute in node.attribute:
        graphs = [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs
        for graph in graphs:
            inner = {name for child in graph.node for name in child.output} | {value.name for value in graph.input}
            read = [name for child in graph.node for name in _inputs(child)] + [value.name for value in graph.output]
            names += [name for name in read if name not in inner]
    return [name for name in names if name]


class _Gathering:
    """Layers under way."""

    def __init__(self, weights: Mapping[str, Weight], shapes: Mapping[str, Sequence[int | str | None] | None]) -> None:
        # The parameters that a value consists of; nothing for one that depends on the data.
        self._made_of: dict[str, list[Weight]] = {name: [weight] for name, weight in weights.items()}
        self._shapes = shapes
        self._layers: list[tuple[list[onnx.NodeProto], list[Weight]]] = []

    def add(self, node: onnx.NodeProto) -> None:
        names = _inputs(node)
        found = [weight for name in names for weight in self._made_of.get(name, [])]
        if all(name in self._made_of for name in names):  # a parameter that is transposed, say, or a shape
            for name in node.output:
                self._made_of[name] = found
            return
        real = list(dict.fromkeys(weight for weight in found if _counts(weight)))
        if not self._layers or (real and not self._is_bias(node, real)):
            self._layers.append(([node], real))
        else:
            nodes, weights = self._layers[-1]
            nodes.append(node)
            weights.extend(weight for weight in real if weight not in weights)

    def _is_bias(self, node: onnx.NodeProto, weights: Sequence[Weight]) -> bool:
        """Whether it adds a vector to what the product just before it returned."""
        nodes, before = self._layers[-1]
        vectors = all(sum(size > 1 for size in weight.shape) <= 1 for weight in weights)
        follows = nodes[-1].op_type in _PRODUCTS and nodes[-1].output[0] in node.input
        return node.op_type == "Add" and vectors and bool(before) and follows

    def layers(self) -> list[Layer]:
        return [
            Layer(
                _name(nodes, weights), [node.op_type for node in nodes], weights, self._shapes.get(nodes[-1].output[0])
            )
            for nodes, weights in self._layers
        ]


def _counts(weight: Weight) -> bool:
    """Whether it is a parameter, not a constant that an operator takes as its setting."""
    return weight.kind != "constant" or math.prod(weight.shape) > _SETTING


def _name(nodes: Sequence[onnx.NodeProto], weights: Sequence[Weight]) -> str:
    """The part that all names of its parameters have in common, or the name of its first node."""
    paths = [re.split(r"[./]", weight.name) for weight in weights if weight.kind != "constant"]
    common = [parts[0] for parts in itertools.takewhile(lambda p: len(set(p)) == 1, zip(*paths, strict=False))]
    if len(paths) > 1 and common:
        return ".".join(common)
    if len(paths) == 1:
        return ".".join(paths[0][:-1]) or paths[0][0]
    return nodes[0].name or nodes[0].output[0]


def _shape(value: onnx.ValueInfoProto) -> list[int | str | None] | None:
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
        return None
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in kind.shape.dim]


def _written(shape: Sequence[int | str | None] | None) -> str:
    return "" if shape is None else f"[{', '.join('?' if dim is None else str(dim) for dim in shape)}]"

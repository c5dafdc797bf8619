"""Stand-ins in the copy of a model that onnx's inference gets: for what it does not know, gets wrong, or dies of.

A stand-in gives the same types and, as far as they are true, the same sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx
from onnx import helper

from onward.graph.attention import show_attentions
from onward.graph.guard import show_guards

# Written to nodes that inference must not see; what is known of their sizes is in the value_info of their results.
HIDDEN = "onward.hidden"
_UNKNOWN = "onward/unknown"  # an input of which nothing is known


def put_stand_ins(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Put stand-ins into `proto`, in place."""
    for graph in _graphs(proto):
        show_guards(graph)
        for node in graph.node:
            if node.op_type == "GroupNormalization" and node.domain == "":
                _become(node, "Identity", node.input[:1])  # onnx infers nothing of it
        _hide_truths(graph)
    _show_constants_to_bodies(proto)
    for graph in list(_graphs(proto)):
        if _hide_marked(graph) | show_attentions(graph, _UNKNOWN):
            _declare_unknown(proto.graph)
    return proto


# Operators through which onnx follows the values of vectors, of any type; it makes an object for each element.
_FOLLOWED = frozenset("Add Cast Concat Gather Mod Mul Slice Squeeze Sub Unsqueeze".split())
_LONG = 1024  # vectors that hold shapes are shorter; biases may be longer
_MOST_ELEMENTS = 2**22  # of all long ones together
_ELSEWHERE = "onward.hidden"  # a domain of which onnx knows nothing


def hide_long_vectors(proto: onnx.ModelProto) -> None:
    """Let inference not follow the values of long vectors, in place: it never comes to the end of a Range to 2**40."""
    measured = onnx.shape_inference.infer_shapes(proto)  # without values
    followed = list(_long_vectors(proto.graph, measured.graph, {}))
    budget, hidden = _MOST_ELEMENTS, False
    for length, node, graph, types in sorted(followed, key=lambda row: row[0]):
        budget -= length
        if budget < 0:
            node.domain, hidden = _ELSEWHERE, True
            described = {value.name for value in (*graph.value_info, *graph.output)}
            missing = [name for name in node.output if name in types and name not in described]
            graph.value_info.extend(onnx.ValueInfoProto(name=name, type=types[name]) for name in missing)
    if hidden:
        proto.opset_import.append(helper.make_opsetid(_ELSEWHERE, 1))


Types = dict[str, onnx.TypeProto]


def _long_vectors(
    graph: onnx.GraphProto, measured: onnx.GraphProto, outer: Types
) -> Iterator[tuple[int, onnx.NodeProto, onnx.GraphProto, Types]]:
    """Nodes whose long vectors onnx would follow, with the length of those, the graph and the types that are known."""
    known = (*measured.value_info, *measured.input, *measured.output)
    types = {**outer, **{value.name: value.type for value in known}}
    for node in graph.node:
        if node.op_type in _FOLLOWED and node.domain == "":
            length = sum(_length(types[name]) for name in (*node.input, *node.output) if name in types)
            if length > _LONG:
                yield length, node, graph, types
    for body, measured_body in zip(bodies(graph), bodies(measured), strict=True):
        yield from _long_vectors(body, measured_body, types)


def _length(kind: onnx.TypeProto) -> int:
    sizes = kind.tensor_type.shape.dim
    return sizes[0].dim_value if len(sizes) == 1 else 0


def squeeze_ranges(proto: onnx.ModelProto) -> None:
    """Range wants scalars; onnxruntime also takes vectors of one element, and the body of AffineGrid has them."""
    for graph in _graphs(proto):
        for index in reversed(range(len(graph.node))):
            node = graph.node[index]
            if node.op_type == "Range" and node.domain == "":
                scalars = [f"{node.output[0]}/scalar_{place}" for place in range(3)]
                for place, name in enumerate(scalars):
                    graph.node.insert(index, helper.make_node("Squeeze", [node.input[place]], [name]))
                node.input[:] = scalars


def bodies(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graphs in the attributes of the nodes of a graph."""
    for node in graph.node:
        for attribute in node.attribute:
            yield from [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs


def _graphs(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    graphs = [proto.graph]
    for graph in graphs:
        yield graph
        graphs.extend(bodies(graph))


def _become(node: onnx.NodeProto, op_type: str, inputs: Sequence[str]) -> None:
    node.op_type, node.input[:] = op_type, list(inputs)
    del node.attribute[:]


def _show_constants_to_bodies(proto: onnx.ModelProto) -> None:
    """Copy integers of the main graph (axes, shapes) into the bodies that use them: inference does not look outside."""
    integers = {
        tensor.name: tensor
        for tensor in proto.graph.initializer
        if tensor.data_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
    }
    for graph in list(_graphs(proto))[1:]:
        shown: set[str] = set()
        for node in graph.node:
            for index, name in enumerate(node.input):
                if name in integers:
                    # Another name: an inner value must not be called as an outer one.
                    node.input[index] = f"{name}/in/{graph.name}"
                    shown.add(name)
        for name in sorted(shown):
            copy = graph.initializer.add()
            copy.CopyFrom(integers[name])
            copy.name = f"{name}/in/{graph.name}"


def _hide_truths(graph: onnx.GraphProto) -> None:
    """Whether a size is not 0 is no size: onnx follows values through every Cast as if they stayed the same."""
    for index in reversed(range(len(graph.node))):
        node = graph.node[index]
        kinds = [attribute.i for attribute in node.attribute if attribute.name == "to"]
        if node.op_type == "Cast" and node.domain == "" and onnx.TensorProto.BOOL in kinds:
            truth, node.output[0] = node.output[0], f"{node.output[0]}/size"
            graph.node.insert(index + 1, helper.make_node("Not", node.output[:1], [truth]))


def _hide_marked(graph: onnx.GraphProto) -> bool:
    """In place of nodes that are marked: a Tile of which only the rank follows. Whether there were any."""
    found = False
    for index in reversed(range(len(graph.node))):
        node = graph.node[index]
        if not any(entry.key == HIDDEN for entry in node.metadata_props):
            continue
        found = True
        _become(node, "Tile", [node.input[0], _UNKNOWN])
        for output in node.output[1:]:  # the places of the maxima, in the shape of these
            places = helper.make_node("Cast", node.output[:1], [output], to=onnx.TensorProto.INT64)
            graph.node.insert(index + 1, places)
        del node.output[1:]
    return found


def _declare_unknown(main: onnx.GraphProto) -> None:
    if all(value.name != _UNKNOWN for value in main.input):
        main.input.append(helper.make_tensor_value_info(_UNKNOWN, onnx.TensorProto.INT64, None))

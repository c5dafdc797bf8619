"""Models between onnx and onnx_ir, where the two do not say the same.

onnx_ir knows no maps. They are what ZipMap makes of probabilities, in every classifier of scikit-learn, and what
DictVectorizer takes; no operator of the standard has to do with them. Here, a value of such a type has none in onnx_ir,
and keeps it in its metadata until it is written again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx
import onnx_ir as ir

_MAP_TYPE = "onward.map_type"


def from_proto(proto: onnx.ModelProto) -> ir.Model:
    """`proto` in onnx_ir; it is not changed, and weights are shared."""
    if any(has_map(value.type) for value in _values(proto)):
        own = onnx.ModelProto()
        own.CopyFrom(proto)
        for value in _values(own):
            if has_map(value.type):
                value.metadata_props.add(key=_MAP_TYPE, value=value.type.SerializeToString().hex())
                value.ClearField("type")
        proto = own
    return ir.serde.deserialize_model(proto)


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """`model` as onnx has it."""
    proto = ir.serde.serialize_model(model)
    for value in _values(proto):
        for index, entry in enumerate(value.metadata_props):
            if entry.key == _MAP_TYPE:
                value.type.ParseFromString(bytes.fromhex(entry.value))
                del value.metadata_props[index]
                break
    return proto


def map_type(value: ir.Value) -> str | None:
    """The type of a value that is a map or a sequence of them, as onnxruntime calls it, else None."""
    kept = value.metadata_props.get(_MAP_TYPE)
    return None if kept is None else spelled(onnx.TypeProto.FromString(bytes.fromhex(kept)))


def map_refusal(name: str, kind: str, origins: Iterable[str]) -> str:
    """What to say to those who give a map to a loss; `origins` are the values that it is made of."""
    made_of = ", ".join(map(repr, origins)) or "a tensor"
    return f"{name!r} is no tensor but of type {kind}, which a loss cannot take. Name what it is made of: {made_of}."


def drop_map_outputs(graph: ir.Graph) -> None:
    """Take away outputs that contain maps: no device can bind them, and few languages read them."""
    for value in [value for value in graph.outputs if map_type(value) is not None]:
        graph.outputs.remove(value)


def spelled(kind: onnx.TypeProto) -> str:
    """A type as onnxruntime calls it."""
    if kind.HasField("sequence_type"):
        return f"seq({spelled(kind.sequence_type.elem_type)})"
    if kind.HasField("optional_type"):
        return f"optional({spelled(kind.optional_type.elem_type)})"
    if kind.HasField("map_type"):
        return f"map({_element(kind.map_type.key_type)},{spelled(kind.map_type.value_type)})"
    return f"tensor({_element(kind.tensor_type.elem_type)})"


def _element(dtype: int) -> str:
    return onnx.TensorProto.DataType.Name(dtype).lower()


def has_map(kind: onnx.TypeProto) -> bool:
    """Whether a type is a map, or contains one."""
    if kind.HasField("sequence_type"):
        return has_map(kind.sequence_type.elem_type)
    if kind.HasField("optional_type"):
        return has_map(kind.optional_type.elem_type)
    return kind.HasField("map_type")


def _values(proto: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
    """All descriptions of values, in a model that uses more than the standard's operators."""
    if all(imported.domain in ("", "ai.onnx") for imported in proto.opset_import):
        return
    for function in proto.functions:
        yield from function.value_info
        yield from _inner_values(function.node)
    yield from _graph_values(proto.graph)


def _graph_values(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    yield from graph.input
    yield from graph.output
    yield from graph.value_info
    yield from _inner_values(graph.node)


def _inner_values(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.ValueInfoProto]:
    for node in nodes:
        for attribute in node.attribute:
            for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                yield from _graph_values(graph)

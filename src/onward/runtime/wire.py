"""Edit serialized ONNX models without the onnx package, which a device that trains need not have.

A protobuf message is a sequence of (field number, wire type, payload). Editing a model means keeping most of them as
they are, byte for byte, and replacing a few: nodes, inputs, outputs and initializers of the main graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

# Field numbers of onnx.proto.
_MODEL_GRAPH, _MODEL_METADATA = 7, 14
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
_GRAPH_NODE, _GRAPH_INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT, _GRAPH_VALUE_INFO = 1, 5, 11, 12, 13
_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _NODE_ATTRIBUTE = 1, 2, 3, 5
_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS = 6, 11
_VALUE_NAME = 1
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME, _TENSOR_RAW = 1, 2, 8, 9

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

_TENSOR_TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9,
    "float16": 10, "float64": 11, "uint32": 12, "uint64": 13, "bfloat16": 16,
}  # fmt: skip

Buffer = bytes | memoryview


@dataclass
class WireNode:
    """A node: what is needed to know what depends on what, and its bytes."""

    name: str
    inputs: list[str]
    outputs: list[str]
    payload: Buffer


@dataclass
class WireModel:
    """A model whose main graph can be edited; everything else is kept as it was read."""

    nodes: list[WireNode]
    inputs: dict[str, Buffer]
    outputs: dict[str, Buffer]
    value_info: dict[str, Buffer]
    initializers: dict[str, Buffer]
    metadata: dict[str, str]
    _model_rest: list[Buffer] = field(repr=False)
    _graph_rest: list[Buffer] = field(repr=False)

    def serialize(self) -> bytes:
        graph: list[Buffer] = []
        for node in self.nodes:
            graph += _encode_bytes(_GRAPH_NODE, node.payload)
        for number, values in (
            (_GRAPH_INITIALIZER, self.initializers),
            (_GRAPH_INPUT, self.inputs),
            (_GRAPH_OUTPUT, self.outputs),
            (_GRAPH_VALUE_INFO, self.value_info),
        ):
            for payload in values.values():
                graph += _encode_bytes(number, payload)
        graph += self._graph_rest
        size = sum(len(part) for part in graph)
        return b"".join([*self._model_rest, _varint(_MODEL_GRAPH << 3 | _BYTES), _varint(size), *graph])

    def holds(self, name: str, array: np.ndarray) -> bool:
        """Whether an initializer has exactly these contents, as far as that can be seen without decoding it."""
        payload = self.initializers.get(name)
        if payload is None:
            return False
        raw = next((content for number, content, _ in _fields(memoryview(payload)) if number == _TENSOR_RAW), None)
        return raw is not None and raw == np.ascontiguousarray(array).reshape(-1).view(np.uint8).data

    def freeze(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Turn graph inputs into initializers that hold these arrays."""
        for name, array in arrays.items():
            self.inputs.pop(name, None)
            self.initializers[name] = _encode_tensor(name, array)

    def set_outputs(self, names: Iterable[str]) -> None:
        """Make these values the outputs; each must already be described in the model."""
        described = {**self.value_info, **self.inputs, **self.outputs}
        self.outputs = {name: described[name] for name in names}
        for name in self.outputs:
            self.value_info.pop(name, None)

    def prune(self) -> None:
        """Remove the nodes, inputs and initializers that no output depends on."""
        needed = set(self.outputs)
        kept: list[WireNode] = []
        for node in reversed(self.nodes):
            if needed.intersection(node.outputs):
                needed.update(node.inputs)
                kept.append(node)
        self.nodes = kept[::-1]
        self.inputs = {name: payload for name, payload in self.inputs.items() if name in needed}
        self.initializers = {name: payload for name, payload in self.initializers.items() if name in needed}
        produced = {name for node in self.nodes for name in node.outputs}
        self.value_info = {name: payload for name, payload in self.value_info.items() if name in produced}


def parse(model: bytes) -> WireModel:
    """Read a serialized ModelProto."""
    result = WireModel([], {}, {}, {}, {}, {}, [], [])
    sections = {
        _GRAPH_INPUT: result.inputs,
        _GRAPH_OUTPUT: result.outputs,
        _GRAPH_VALUE_INFO: result.value_info,
    }
    for number, payload, whole in _fields(memoryview(model)):
        if number != _MODEL_GRAPH:
            result._model_rest.append(whole)
            if number == _MODEL_METADATA:
                result.metadata[_string(payload, _ENTRY_KEY)] = _string(payload, _ENTRY_VALUE)
            continue
        for inner, content, entire in _fields(payload):
            if inner == _GRAPH_NODE:
                result.nodes.append(_decode_node(content))
            elif inner == _GRAPH_INITIALIZER:
                result.initializers[_string(content, _TENSOR_NAME)] = content
            elif inner in sections:
                sections[inner][_string(content, _VALUE_NAME)] = content
            else:
                result._graph_rest.append(entire)
    return result


def _decode_node(payload: memoryview) -> WireNode:
    node = WireNode("", [], [], payload)
    for number, content, _ in _fields(payload):
        if number == _NODE_INPUT:
            node.inputs.append(str(content, "utf-8"))
        elif number == _NODE_OUTPUT:
            node.outputs.append(str(content, "utf-8"))
        elif number == _NODE_NAME:
            node.name = str(content, "utf-8")
        elif number == _NODE_ATTRIBUTE:
            # Subgraphs capture outer values: the node depends on whatever its subgraphs read.
            node.inputs.extend(_captured(content))
    return node


def _captured(attribute: memoryview) -> Iterator[str]:
    for number, graph, _ in _fields(attribute):
        if number in (_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS):
            for inner, content, _ in _fields(graph):
                if inner == _GRAPH_NODE:
                    yield from _decode_node(content).inputs
                elif inner == _GRAPH_OUTPUT:
                    yield _string(content, _VALUE_NAME)


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Each field of a message: its number, its payload, and all of its bytes."""
    position = 0
    while position < len(message):
        start = position
        key, position = _read_varint(message, position)
        wire_type = key & 7
        if wire_type == _BYTES:
            size, position = _read_varint(message, position)
        elif wire_type == _VARINT:
            _, end = _read_varint(message, position)
            size = end - position
        elif wire_type in (_FIXED32, _FIXED64):
            size = 4 if wire_type == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {wire_type} does not occur in ONNX files: the model is damaged")
        yield key >> 3, message[position : position + size], message[start : position + size]
        position += size


def _read_varint(message: memoryview, position: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = message[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if not byte & 0x80:
            return value, position
        shift += 7


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _string(message: memoryview, number: int) -> str:
    for found, payload, _ in _fields(message):
        if found == number:
            return str(payload, "utf-8")
    return ""


def _encode_bytes(number: int, payload: Buffer) -> list[Buffer]:
    return [_varint(number << 3 | _BYTES), _varint(len(payload)), payload]


def _encode_tensor(name: str, array: np.ndarray) -> bytes:
    parts: list[Buffer] = []
    for size in array.shape:
        parts += [_varint(_TENSOR_DIMS << 3 | _VARINT), _varint(size)]
    parts += [_varint(_TENSOR_TYPE << 3 | _VARINT), _varint(_TENSOR_TYPES[array.dtype.name])]
    parts += _encode_bytes(_TENSOR_NAME, name.encode())
    parts += _encode_bytes(_TENSOR_RAW, np.ascontiguousarray(array).tobytes())
    return b"".join(parts)

"""Edit serialized ONNX models without the onnx package, which a device that trains need not have.

A protobuf message is a sequence of (field number, wire type, payload). Editing a model means keeping most of them as
they are, byte for byte, and replacing a few: nodes, inputs, outputs and initializers of the main graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from onward.errors import InvalidModelError

# Field numbers of onnx.proto.
_MODEL_GRAPH, _MODEL_METADATA = 7, 14
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
_GRAPH_NODE, _GRAPH_INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT, _GRAPH_VALUE_INFO = 1, 5, 11, 12, 13
_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _NODE_OPERATOR, _NODE_ATTRIBUTE = 1, 2, 3, 4, 5
_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS = 6, 11
_VALUE_NAME, _VALUE_TYPE = 1, 2
_TYPE_TENSOR = 1
_TENSOR_TYPE_ELEMENT, _TENSOR_TYPE_SHAPE = 1, 2
_SHAPE_DIM, _DIM_VALUE, _DIM_PARAM = 1, 1, 2
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME, _TENSOR_RAW = 1, 2, 8, 9
_TENSOR_EXTERNAL_DATA, _TENSOR_DATA_LOCATION = 13, 14
_EXTERNAL = 1

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

TENSOR_TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9,
    "float16": 10, "float64": 11, "uint32": 12, "uint64": 13, "bfloat16": 16,
}  # fmt: skip

Buffer = bytes | memoryview

# More than this does not fit into one serialized message together with the rest of a model.
LARGEST_MESSAGE = 2**31 - 2**24


@dataclass
class WireNode:
    """A node: what is needed to know what depends on what, and its bytes."""

    name: str
    operator: str
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
        """The bytes of the model."""
        return b"".join(self.parts())

    def parts(self) -> list[Buffer]:
        """The bytes of the model, piece by piece."""
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
        metadata: list[Buffer] = []
        for key, value in self.metadata.items():
            entry = [*_encode_bytes(_ENTRY_KEY, key.encode()), *_encode_bytes(_ENTRY_VALUE, value.encode())]
            metadata += _encode_bytes(_MODEL_METADATA, b"".join(entry))
        return [*self._model_rest, _varint(_MODEL_GRAPH << 3 | _BYTES), _varint(size), *graph, *metadata]

    def holds(self, name: str, array: np.ndarray, folder: Path) -> bool:
        """Whether an initializer has exactly these contents, as far as that can be seen without decoding it."""
        payload = self.initializers.get(name)
        if payload is None:
            return False
        raw = _raw_data(memoryview(payload), folder)
        return raw is not None and raw == np.ascontiguousarray(array).reshape(-1).view(np.uint8).data

    def is_external(self, name: str) -> bool:
        """Whether an initializer is in another file."""
        fields = _fields(memoryview(self.initializers[name]))
        return any(number == _TENSOR_DATA_LOCATION and payload[0] == _EXTERNAL for number, payload, _ in fields)

    def freeze(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Turn graph inputs into initializers that hold these arrays."""
        for name, array in arrays.items():
            self.inputs.pop(name, None)
            self.initializers[name] = _encode_tensor(name, array)

    def freeze_elsewhere(self, name: str, array: np.ndarray, location: str, offset: int = 0) -> None:
        """Turn a graph input into an initializer whose contents are in a file."""
        self.inputs.pop(name, None)
        self.initializers[name] = _encode_external(name, array, location, offset)

    def external_names(self) -> list[str]:
        """The initializers that are in other files."""
        return [name for name in self.initializers if self.is_external(name)]

    def external_size(self) -> int:
        """How many bytes of initializers are in other files, as far as the model says so."""
        places = [_external_data(memoryview(self.initializers[name])) for name in self.external_names()]
        return sum(int(place.get("length", 0)) for place in places)

    def load_external(self, folder: Path) -> None:
        """Take initializers that are in other files into the model."""
        for name in self.external_names():
            raw, rest = self._external(name, folder)
            self.initializers[name] = b"".join([*rest, *_encode_bytes(_TENSOR_RAW, raw)])

    def relocate(self, name: str, folder: Path, location: str, offset: int) -> Buffer:
        """Say that an external initializer is in another file; returns the bytes to write there."""
        raw, rest = self._external(name, folder)
        self.initializers[name] = b"".join([*rest, *_encode_place(location, offset, len(raw))])
        return raw

    def _external(self, name: str, folder: Path) -> tuple[Buffer, list[Buffer]]:
        """The bytes of an external initializer, and its description without the place."""
        payload = memoryview(self.initializers[name])
        raw = _raw_data(payload, folder)
        if raw is None:
            raise InvalidModelError(f"the contents of initializer {name!r} are not in {str(folder)!r}")
        place = (_TENSOR_EXTERNAL_DATA, _TENSOR_DATA_LOCATION)
        return raw, [whole for number, _, whole in _fields(payload) if number not in place]

    def type_of(self, name: str) -> tuple[int, tuple[int | str | None, ...] | None] | None:
        """Element type (a number of onnx.TensorProto.DataType) and shape of an input, output or initializer."""
        if name in self.initializers:
            fields = list(_fields(memoryview(self.initializers[name])))
            element = next((_read_varint(p, 0)[0] for number, p, _ in fields if number == _TENSOR_TYPE), 0)
            return element, tuple(size for number, p, _ in fields if number == _TENSOR_DIMS for size in _varints(p))
        described = {**self.value_info, **self.outputs, **self.inputs}
        return _decode_type(memoryview(described[name])) if name in described else None

    def set_outputs(self, names: Iterable[str], others: Mapping[str, Buffer] | None = None) -> None:
        """Make these values the outputs; each must be described in the model or in `others`."""
        described = {**(others or {}), **self.value_info, **self.inputs, **self.outputs}
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
    try:
        return _parse(model)
    except (IndexError, ValueError) as error:
        raise InvalidModelError(f"this is not an ONNX model, or a damaged one ({error})") from error


def _parse(model: bytes) -> WireModel:
    result = WireModel([], {}, {}, {}, {}, {}, [], [])
    sections = {
        _GRAPH_INPUT: result.inputs,
        _GRAPH_OUTPUT: result.outputs,
        _GRAPH_VALUE_INFO: result.value_info,
    }
    for number, payload, whole in _fields(memoryview(model)):
        if number == _MODEL_METADATA:
            result.metadata[_string(payload, _ENTRY_KEY)] = _string(payload, _ENTRY_VALUE)
        elif number != _MODEL_GRAPH:
            result._model_rest.append(whole)
        if number != _MODEL_GRAPH:
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
    node = WireNode("", "", [], [], payload)
    for number, content, _ in _fields(payload):
        if number == _NODE_INPUT:
            node.inputs.append(str(content, "utf-8"))
        elif number == _NODE_OUTPUT:
            node.outputs.append(str(content, "utf-8"))
        elif number == _NODE_NAME:
            node.name = str(content, "utf-8")
        elif number == _NODE_OPERATOR:
            node.operator = str(content, "utf-8")
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
            raise ValueError(f"wire type {wire_type} does not occur in ONNX files")
        if position + size > len(message):
            raise ValueError("it ends too early")
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


def encode_value_info(name: str, element_type: int | None, shape: Iterable[int | str | None] | None) -> bytes:
    """The description of a tensor: its name, element type and shape."""
    title = _encode_bytes(_VALUE_NAME, name.encode())
    if element_type is None:
        return b"".join(title)
    tensor: list[Buffer] = [_varint(_TENSOR_TYPE_ELEMENT << 3 | _VARINT), _varint(element_type)]
    if shape is not None:
        dims: list[Buffer] = []
        for size in shape:
            dim: list[Buffer] = []
            if isinstance(size, int):
                dim = [_varint(_DIM_VALUE << 3 | _VARINT), _varint(size)]
            elif size:
                dim = _encode_bytes(_DIM_PARAM, size.encode())
            dims += _encode_bytes(_SHAPE_DIM, b"".join(dim))
        tensor += _encode_bytes(_TENSOR_TYPE_SHAPE, b"".join(dims))
    kind = b"".join(_encode_bytes(_TYPE_TENSOR, b"".join(tensor)))
    return b"".join([*title, *_encode_bytes(_VALUE_TYPE, kind)])


def _decode_type(value_info: memoryview) -> tuple[int, tuple[int | str | None, ...] | None] | None:
    tensor = _descend(value_info, _VALUE_TYPE, _TYPE_TENSOR)
    if tensor is None:
        return None
    element, shape = 0, None
    for number, payload, _ in _fields(tensor):
        if number == _TENSOR_TYPE_ELEMENT:
            element = _read_varint(payload, 0)[0]
        elif number == _TENSOR_TYPE_SHAPE:
            shape = tuple(_decode_dim(dim) for inner, dim, _ in _fields(payload) if inner == _SHAPE_DIM)
    return element, shape


def _decode_dim(dim: memoryview) -> int | str | None:
    for number, payload, _ in _fields(dim):
        if number == _DIM_VALUE:
            return _read_varint(payload, 0)[0]
        if number == _DIM_PARAM:
            return str(payload, "utf-8")
    return None


def _descend(message: memoryview, *numbers: int) -> memoryview | None:
    for wanted in numbers:
        found = next((payload for number, payload, _ in _fields(message) if number == wanted), None)
        if found is None:
            return None
        message = found
    return message


def _varints(payload: memoryview) -> Iterator[int]:
    """The numbers of a repeated field, of which protobuf packs several into one payload."""
    position = 0
    while position < len(payload):
        value, position = _read_varint(payload, position)
        yield value


def _raw_data(tensor: memoryview, folder: Path) -> Buffer | None:
    """The bytes of a tensor, where they are stored as such."""
    raw = next((payload for number, payload, _ in _fields(tensor) if number == _TENSOR_RAW), None)
    place = _external_data(tensor)
    if raw is not None or not place:
        return raw
    path = folder / place["location"]
    if not path.is_file():
        return None
    with open(path, "rb") as file:
        file.seek(int(place.get("offset", 0)))
        return file.read(int(place.get("length", -1)))


def _external_data(tensor: memoryview) -> dict[str, str]:
    """Where the contents of a tensor are: location, offset and length."""
    entries = [payload for number, payload, _ in _fields(tensor) if number == _TENSOR_EXTERNAL_DATA]
    return {_string(entry, _ENTRY_KEY): _string(entry, _ENTRY_VALUE) for entry in entries}


def _encode_header(name: str, array: np.ndarray) -> list[Buffer]:
    parts: list[Buffer] = []
    for size in array.shape:
        parts += [_varint(_TENSOR_DIMS << 3 | _VARINT), _varint(size)]
    parts += [_varint(_TENSOR_TYPE << 3 | _VARINT), _varint(TENSOR_TYPES[array.dtype.name])]
    return parts + _encode_bytes(_TENSOR_NAME, name.encode())


def _encode_tensor(name: str, array: np.ndarray) -> bytes:
    contents = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return b"".join([*_encode_header(name, array), *_encode_bytes(_TENSOR_RAW, contents)])


def _encode_external(name: str, array: np.ndarray, location: str, offset: int) -> bytes:
    return b"".join([*_encode_header(name, array), *_encode_place(location, offset, array.nbytes)])


def _encode_place(location: str, offset: int, length: int) -> list[Buffer]:
    parts: list[Buffer] = []
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        entry = [*_encode_bytes(_ENTRY_KEY, key.encode()), *_encode_bytes(_ENTRY_VALUE, value.encode())]
        parts += _encode_bytes(_TENSOR_EXTERNAL_DATA, b"".join(entry))
    return [*parts, _varint(_TENSOR_DATA_LOCATION << 3 | _VARINT), _varint(_EXTERNAL)]

"""Edit serialized ONNX models without the onnx package, which a device that trains need not have.

Editing a model means keeping most fields of its messages as they are, byte for byte, and replacing a few: nodes,
inputs, outputs and initializers of the main graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from onward.errors import InvalidModelError
from onward.location import resolve_inside
from onward.runtime import tensorproto, valueproto
from onward.runtime.protobuf import (
    BYTES,
    Budget,
    Buffer,
    encode_bytes,
    encode_text,
    fields,
    payloads,
    text,
    varint,
)

# Field numbers of onnx.proto.
_MODEL_GRAPH, _MODEL_METADATA, _MODEL_FUNCTION = 7, 14, 25
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
_GRAPH_NODE, _GRAPH_INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT, _GRAPH_VALUE_INFO, _GRAPH_SPARSE = 1, 5, 11, 12, 13, 15
_FUNCTION_NODE = 7
_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _NODE_OPERATOR, _NODE_ATTRIBUTE = 1, 2, 3, 4, 5
_ATTRIBUTE_TENSOR, _ATTRIBUTE_GRAPH, _ATTRIBUTE_TENSORS, _ATTRIBUTE_GRAPHS = 5, 6, 10, 11
_ATTRIBUTE_SPARSE, _ATTRIBUTE_SPARSES = 22, 23
_SPARSE_VALUES, _SPARSE_INDICES = 1, 2

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
    _inner_files: set[str] = field(repr=False)

    def serialize(self) -> bytes:
        """The bytes of the model."""
        return b"".join(self.parts())

    def parts(self) -> list[Buffer]:
        """The bytes of the model, piece by piece."""
        graph: list[Buffer] = []
        for node in self.nodes:
            graph += encode_bytes(_GRAPH_NODE, node.payload)
        for section, values in (
            (_GRAPH_INITIALIZER, self.initializers),
            (_GRAPH_INPUT, self.inputs),
            (_GRAPH_OUTPUT, self.outputs),
            (_GRAPH_VALUE_INFO, self.value_info),
        ):
            for payload in values.values():
                graph += encode_bytes(section, payload)
        graph += self._graph_rest
        size = sum(len(part) for part in graph)
        metadata: list[Buffer] = []
        for key, value in self.metadata.items():
            entry = [*encode_text(_ENTRY_KEY, key), *encode_text(_ENTRY_VALUE, value)]
            metadata += encode_bytes(_MODEL_METADATA, b"".join(entry))
        return [*self._model_rest, varint(_MODEL_GRAPH << 3 | BYTES), varint(size), *graph, *metadata]

    def holds(self, name: str, array: np.ndarray, folder: Path) -> bool:
        """Whether an initializer has exactly these contents, as far as that can be seen without decoding it."""
        payload = self.initializers.get(name)
        if payload is None:
            return False
        raw = tensorproto.raw_data(memoryview(payload), folder)
        return raw is not None and raw == np.ascontiguousarray(array).reshape(-1).view(np.uint8).data

    def is_external(self, name: str) -> bool:
        """Whether an initializer is in another file."""
        return tensorproto.is_external(memoryview(self.initializers[name]))

    def freeze(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Turn graph inputs into initializers that hold these arrays."""
        for name, array in arrays.items():
            self.inputs.pop(name, None)
            self.initializers[name] = tensorproto.encode(name, array)

    def freeze_elsewhere(self, name: str, array: np.ndarray, location: str, offset: int = 0) -> None:
        """Turn a graph input into an initializer whose contents are in a file."""
        self.inputs.pop(name, None)
        self.initializers[name] = tensorproto.encode_external(name, array, location, offset)

    def external_names(self) -> list[str]:
        """The initializers that are in other files."""
        return [name for name in self.initializers if self.is_external(name)]

    def external_size(self) -> int:
        """How many bytes of initializers are in other files, as far as the model says so."""
        places = (tensorproto.place_of(memoryview(self.initializers[name])) for name in self.external_names())
        return sum(place.length or 0 for place in places)

    def check_files(self, folder: Path) -> bool:
        """Refuse a model that would be read from outside of its folder; whether it has anything in other files."""
        places = (tensorproto.place_of(memoryview(self.initializers[name])) for name in self.external_names())
        locations = {place.location for place in places} | self._inner_files
        for location in sorted(locations):
            resolve_inside(folder, location)
        return bool(locations)

    def load_external(self, folder: Path) -> None:
        """Take initializers that are in other files into the model."""
        for name in self.external_names():
            self.initializers[name] = tensorproto.moved_here(self._payload(name), self._external(name, folder))

    def relocate(self, name: str, folder: Path, location: str, offset: int) -> Buffer:
        """Say that an external initializer is in another file; returns the bytes to write there."""
        raw = self._external(name, folder)
        self.initializers[name] = tensorproto.moved(self._payload(name), location, offset, len(raw))
        return raw

    def _payload(self, name: str) -> memoryview:
        return memoryview(self.initializers[name])

    def _external(self, name: str, folder: Path) -> Buffer:
        """The bytes of an external initializer."""
        raw = tensorproto.raw_data(self._payload(name), folder)
        if raw is None:
            raise InvalidModelError(f"the contents of initializer {name!r} are not in {str(folder)!r}")
        return raw

    def type_of(self, name: str) -> tuple[int, tuple[int | str | None, ...] | None] | None:
        """Element type (a number of onnx.TensorProto.DataType) and shape of an input, output or initializer."""
        if name in self.initializers:
            return tensorproto.type_of(self._payload(name))
        described = next((v[name] for v in (self.inputs, self.outputs, self.value_info) if name in v), None)
        return None if described is None else valueproto.decode(name, memoryview(described))

    def set_outputs(self, names: Iterable[str], others: Mapping[str, Buffer] | None = None) -> None:
        """Make these values the outputs; each must be described in the model or in `others`."""
        described = {**(others or {}), **self.value_info, **self.inputs, **self.outputs}
        missing = [name for name in names if name not in described]
        if missing:
            raise InvalidModelError(f"the model does not say what {missing[0]!r} is")
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
        return _Reader().read(memoryview(model))
    except ValueError as error:
        raise InvalidModelError(f"this is not an ONNX model, or a damaged one ({error})") from error


class _Reader:
    """Reads one model, whatever is in it, with a bounded effort."""

    def __init__(self) -> None:
        self._budget = Budget()
        self._files: set[str] = set()  # of tensors that are no initializers of the main graph
        self._model = WireModel([], {}, {}, {}, {}, {}, [], [], self._files)

    def read(self, model: memoryview) -> WireModel:
        result = self._model
        for section, payload, whole in fields(model, self._budget):
            if section == _MODEL_METADATA:
                result.metadata[text(payload, _ENTRY_KEY)] = text(payload, _ENTRY_VALUE)
            elif section == _MODEL_GRAPH:
                self._read_graph(payload)
            else:
                result._model_rest.append(whole)
            if section == _MODEL_FUNCTION:
                for inner, content, _ in fields(payload, self._budget):
                    if inner == _FUNCTION_NODE:
                        self._node(content, 0)
        return result

    def _read_graph(self, graph: memoryview) -> None:
        result = self._model
        values = {
            _GRAPH_INPUT: result.inputs,
            _GRAPH_OUTPUT: result.outputs,
            _GRAPH_VALUE_INFO: result.value_info,
        }
        for section, payload, whole in fields(graph, self._budget):
            if section == _GRAPH_NODE:
                result.nodes.append(self._node(payload, 0))
            elif section == _GRAPH_INITIALIZER:
                tensorproto.check(payload)
                _add(result.initializers, text(payload, tensorproto.NAME), payload)
            elif section in values:
                name = text(payload, valueproto.NAME)
                if section == _GRAPH_VALUE_INFO:  # harmless where it is said twice
                    result.value_info[name] = payload
                else:
                    _add(values[section], name, payload)
            else:
                result._graph_rest.append(whole)
                if section == _GRAPH_SPARSE:
                    self._note_files(payloads(payload, _SPARSE_VALUES, _SPARSE_INDICES))

    def _node(self, payload: memoryview, depth: int) -> WireNode:
        node = WireNode("", "", [], [], payload)
        for section, content, _ in fields(payload, self._budget):
            if section == _NODE_INPUT:
                node.inputs.append(str(content, "utf-8"))
            elif section == _NODE_OUTPUT:
                node.outputs.append(str(content, "utf-8"))
            elif section == _NODE_NAME:
                node.name = str(content, "utf-8")
            elif section == _NODE_OPERATOR:
                node.operator = str(content, "utf-8")
            elif section == _NODE_ATTRIBUTE:
                # Subgraphs capture outer values: the node depends on whatever its subgraphs read.
                node.inputs.extend(self._captured(content, depth))
        return node

    def _captured(self, attribute: memoryview, depth: int) -> Iterator[str]:
        for section, payload, _ in fields(attribute, self._budget):
            if section in (_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS):
                yield from self._read_by(payload, self._budget.deeper(depth))
            elif section in (_ATTRIBUTE_TENSOR, _ATTRIBUTE_TENSORS):
                self._note_files([payload])
            elif section in (_ATTRIBUTE_SPARSE, _ATTRIBUTE_SPARSES):
                self._note_files(payloads(payload, _SPARSE_VALUES, _SPARSE_INDICES))

    def _read_by(self, subgraph: memoryview, depth: int) -> Iterator[str]:
        """The values that a subgraph reads, its own among them."""
        for section, payload, _ in fields(subgraph, self._budget):
            if section == _GRAPH_NODE:
                yield from self._node(payload, depth).inputs
            elif section == _GRAPH_OUTPUT:
                yield text(payload, valueproto.NAME)
            elif section == _GRAPH_INITIALIZER:
                self._note_files([payload])
            elif section == _GRAPH_SPARSE:
                self._note_files(payloads(payload, _SPARSE_VALUES, _SPARSE_INDICES))

    def _note_files(self, tensors: Iterable[memoryview]) -> None:
        self._files.update(
            tensorproto.place_of(tensor).location for tensor in tensors if tensorproto.is_external(tensor)
        )


def _add(values: dict[str, Buffer], name: str, payload: Buffer) -> None:
    if name in values:
        raise ValueError(f"two of its values are called {name!r}")
    values[name] = payload

"""A file for inference to which other languages add weights, without a library that reads ONNX.

Messages of protobuf merge when their bytes are put one after the other. The file is the graph without weights, and then
a message that makes inputs of those that change and refers to the others in the shared file: as a whole it runs over
whatever weights it is fed. Its first part, followed by a message with all weights, is an ordinary model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import onnx


def structure_and_inputs(
    model: onnx.ModelProto, state: Collection[str], shared: Collection[str]
) -> tuple[bytes, bytes]:
    """The two parts of the file: `state` are its inputs that change, `shared` the initializers in the shared file."""
    structure, rest = onnx.ModelProto(), onnx.ModelProto()
    structure.CopyFrom(model)
    _move(structure.graph.input, rest.graph.input, state)
    _move(structure.graph.initializer, rest.graph.initializer, shared)
    return structure.SerializeToString(), rest.SerializeToString()


def _move(source: Iterable[onnx.ValueInfoProto], target: Iterable[onnx.ValueInfoProto], names: Collection[str]) -> None:
    moved = [value for value in source if value.name in names]
    target.extend(moved)  # type: ignore[attr-defined]
    for value in moved:
        source.remove(value)  # type: ignore[attr-defined]

"""Files whose weights other languages put in, without a library that reads ONNX.

Messages of protobuf merge when their bytes are put one after the other. Each file is three such messages: the graph
without its weights, the inputs that stand for weights that change, and references to those in the shared file. As a
whole it is a model that any onnxruntime loads. Its first part, followed by a message with all weights, is an ordinary
model; its first two, followed by the weights that do not change, are one that needs no second file.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import onnx


@dataclass(frozen=True)
class Parts:
    """The messages of one file."""

    structure: bytes
    inputs: bytes
    references: bytes

    @property
    def content(self) -> bytes:
        return self.structure + self.inputs + self.references

    def sizes(self) -> dict[str, int]:
        return {"structure": len(self.structure), "inputs": len(self.inputs)}


def parts_of(model: onnx.ModelProto, inputs: Collection[str], shared: Collection[str]) -> Parts:
    """A model in parts: these inputs and these initializers are taken out of its structure."""
    structure, second, third = onnx.ModelProto(), onnx.ModelProto(), onnx.ModelProto()
    structure.CopyFrom(model)
    _move(structure.graph.input, second.graph.input, inputs)
    _move(structure.graph.initializer, third.graph.initializer, shared)
    return Parts(structure.SerializeToString(), second.SerializeToString(), third.SerializeToString())


def _move(source: Any, target: Any, names: Collection[str]) -> None:
    """Move what has one of these names from one repeated field of protobuf to another."""
    moved = [item for item in source if item.name in names]
    target.extend(moved)
    for item in moved:
        source.remove(item)

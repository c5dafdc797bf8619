"""Weights that do not change, in one file that all graphs share."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import onnx
import onnx_ir as ir

from onward.graph.proto import from_proto, to_proto

# Smaller ones stay in the graphs: shapes, scalars and the like, which shape inference wants to see.
SMALLEST = 4096
_ALIGNMENT = 64  # of whatever instructions the kernels of a runtime use


@dataclass(frozen=True)
class Place:
    """Where a tensor is in the file."""

    offset: int
    length: int


@dataclass
class SharedWeights:
    """A file of weights while it is written; each is in it once, however many graphs and names it has."""

    file: IO[bytes]
    name: str
    places: dict[str, Place] = field(default_factory=dict)
    _known: dict[str, Place] = field(default_factory=dict)

    def move_from(self, model: onnx.ModelProto, names: Collection[str], folder: Path) -> onnx.ModelProto:
        """A model whose large weights of these names are in the file; `folder` has its external data so far."""
        copy = from_proto(model)
        ir.external_data.set_base_dir(copy.graph, folder)
        for name, value in copy.graph.initializers.items():
            tensor = value.const_value
            if name not in names or tensor is None or tensor.nbytes < SMALLEST or tensor.dtype == ir.DataType.STRING:
                continue
            place = self._put(tensor)
            if self.places.setdefault(name, place) != place:
                raise AssertionError(f"{name!r} is another tensor in another graph")
            value.const_value = ir.ExternalTensor(
                self.name, place.offset, place.length, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name
            )
        return to_proto(copy)

    def _put(self, tensor: ir.TensorProtocol) -> Place:
        content = tensor.tobytes()
        key = hashlib.sha256(content).hexdigest()
        if key not in self._known:
            self.file.write(bytes(-self.file.tell() % _ALIGNMENT))
            self._known[key] = Place(self.file.tell(), len(content))
            self.file.write(content)
        return self._known[key]

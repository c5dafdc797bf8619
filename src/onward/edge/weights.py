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
    """A file of weights while it is written: each is in it once, however many graphs use it, under whatever names."""

    file: IO[bytes]
    name: str
    places: dict[tuple[int, str], Place] = field(default_factory=dict)

    def put(self, tensor: ir.TensorProtocol) -> Place:
        """Write a tensor, unless it is there."""
        content = tensor.tobytes()
        key = (len(content), hashlib.sha256(content).hexdigest())
        if key not in self.places:
            self.file.write(bytes(-self.file.tell() % _ALIGNMENT))
            self.places[key] = Place(self.file.tell(), len(content))
            self.file.write(content)
        return self.places[key]

    def move_from(
        self, model: onnx.ModelProto, names: Collection[str], folder: Path
    ) -> tuple[onnx.ModelProto, dict[str, Place]]:
        """A model whose large weights of these names are in the file, and where they are.

        `folder` has the external data that the model refers to so far.
        """
        copy, moved = from_proto(model), {}
        ir.external_data.set_base_dir(copy.graph, folder)
        for name, value in copy.graph.initializers.items():
            tensor = value.const_value
            if name not in names or tensor is None or tensor.nbytes < SMALLEST or tensor.dtype == ir.DataType.STRING:
                continue
            place = moved[name] = self.put(tensor)
            value.const_value = ir.ExternalTensor(
                self.name, place.offset, place.length, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name
            )
        return to_proto(copy), moved

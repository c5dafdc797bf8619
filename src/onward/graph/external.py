"""Weights in other files: they come from the folder of the model, and only those that inference needs are read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from onward.errors import InvalidModelError
from onward.graph.skeleton import LARGEST_KEPT
from onward.location import open_inside, resolve_inside

WHERE_DATA_IS = (
    "External data is looked for beside the model, so give the path of the model rather than a loaded ModelProto."
)


def read_small_weights(model: ir.Model) -> None:
    """Read what `skeleton` keeps from external files: onnx does not know where they are, and inference needs values."""
    for value, tensor in lost_weights(model):
        raise InvalidModelError(
            f"initializer {value.name!r} is stored in {str(tensor.path)!r}, which is not a file. {WHERE_DATA_IS}"
        )
    for value, tensor in _external_weights(model):
        _require_room(value, tensor)
        if value.graph is not model.graph or tensor.nbytes <= LARGEST_KEPT:
            (value.const_value,) = ir.external_data.convert_tensors_from_external([tensor])


def lost_weights(model: ir.Model) -> list[tuple[ir.Value, ir.ExternalTensor]]:
    """The initializers whose external file is not there."""
    return [(value, tensor) for value, tensor in _external_weights(model) if not Path(tensor.path).is_file()]


def _external_weights(model: ir.Model) -> Iterator[tuple[ir.Value, ir.ExternalTensor]]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                yield value, value.const_value


def _require_room(value: ir.Value, tensor: ir.ExternalTensor) -> None:
    """See that a file has the bytes that a tensor is said to be."""
    with open_inside(_folder_of(tensor), os.fspath(tensor.location)) as file:
        size = os.fstat(file.fileno()).st_size
    begin, length = tensor.offset or 0, tensor.nbytes if tensor.length is None else tensor.length
    if begin < 0 or length != tensor.nbytes or begin + length > size:
        raise InvalidModelError(
            f"initializer {value.name!r} of {tensor.nbytes} bytes is said to be {length} bytes at {begin} in "
            f"{str(tensor.path)!r}, which has {size}: one of the two files is damaged or of another version"
        )


def check_place(tensor: ir.ExternalTensor) -> None:
    """Refuse a tensor that would come from outside of the folder of its model."""
    resolve_inside(_folder_of(tensor), os.fspath(tensor.location))


def _folder_of(tensor: ir.ExternalTensor) -> str | os.PathLike[str]:
    return tensor.base_dir or os.getcwd()

"""Weights: those of damaged models are refused, and those in other files come from the folder of the model only."""

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
_HIGHEST_RANK = 64  # of numpy
_MOST_BYTES = 2**48  # no machine has as much memory


def check_tensors(model: ir.Model) -> None:
    """Refuse tensors that cannot be what they are said to be, and those that would come from another folder."""
    for name, tensor in _all_tensors(model):
        sizes = tensor.shape.dims
        whole = all(isinstance(size, int) and size >= 0 for size in sizes)
        if not whole or len(sizes) > _HIGHEST_RANK or tensor.nbytes > _MOST_BYTES:
            raise InvalidModelError(f"tensor {name!r} of the model has the shape {list(sizes)[:_HIGHEST_RANK]}")
        if isinstance(tensor, ir.ExternalTensor):
            resolve_inside(_folder_of(tensor), os.fspath(tensor.location))
            continue
        try:
            tensor.numpy()
        except Exception as error:  # onnx_ir, numpy and ml_dtypes each have their own for data of a wrong size or type
            raise InvalidModelError(f"tensor {name!r} of the model is damaged: {error}") from error


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


def _folder_of(tensor: ir.ExternalTensor) -> str | os.PathLike[str]:
    return tensor.base_dir or os.getcwd()


def _all_tensors(model: ir.Model) -> Iterator[tuple[str, ir.TensorProtocol]]:
    for graph in model.graphs():
        for name, value in graph.initializers.items():
            if value.const_value is not None:
                yield name, value.const_value
    for node in (*model.graph.all_nodes(), *(node for f in model.functions.values() for node in f.all_nodes())):
        for attribute in node.attributes.values():
            title = f"{attribute.name} of node {node.name or node.op_type}"
            if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                yield title, attribute.as_tensor()
            elif attribute.type == ir.AttributeType.TENSORS and not attribute.is_ref():
                yield from ((title, tensor) for tensor in attribute.as_tensors())

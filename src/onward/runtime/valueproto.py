"""Serialized descriptions of values (ValueInfoProto): name, element type and shape."""

from __future__ import annotations

from collections.abc import Iterable

from onward.errors import InvalidModelError
from onward.runtime.protobuf import Buffer, encode_bytes, encode_number, encode_text, first, number, payloads, text

# Field numbers of onnx.proto.
NAME = 1
_TYPE, _TENSOR, _ELEMENT, _SHAPE = 2, 1, 1, 2
_DIM, _DIM_VALUE, _DIM_PARAM = 1, 1, 2


def encode(name: str, element_type: int | None, shape: Iterable[int | str | None] | None) -> bytes:
    """The description of a tensor: its name, element type and shape."""
    title = encode_text(NAME, name)
    if element_type is None:
        return b"".join(title)
    tensor = encode_number(_ELEMENT, element_type)
    if shape is not None:
        dims: list[Buffer] = []
        for size in shape:
            dim: list[Buffer] = []
            if isinstance(size, int):
                dim = encode_number(_DIM_VALUE, size)
            elif size:
                dim = encode_text(_DIM_PARAM, size)
            dims += encode_bytes(_DIM, b"".join(dim))
        tensor += encode_bytes(_SHAPE, b"".join(dims))
    kind = b"".join(encode_bytes(_TENSOR, b"".join(tensor)))
    return b"".join([*title, *encode_bytes(_TYPE, kind)])


def decode(name: str, value_info: memoryview) -> tuple[int, tuple[int | str | None, ...] | None] | None:
    """Element type (a number of onnx.TensorProto.DataType) and shape; None for what is no tensor, or not described."""
    try:
        tensor = first(value_info, _TYPE, _TENSOR)
        if tensor is None:
            return None
        element, shape = first(tensor, _ELEMENT), first(tensor, _SHAPE)
        sizes = None if shape is None else tuple(_decode_dim(dim) for dim in payloads(shape, _DIM))
        return 0 if element is None else number(element), sizes
    except ValueError as error:
        raise InvalidModelError(f"what the model says about {name!r} is damaged ({error})") from error


def _decode_dim(dim: memoryview) -> int | str | None:
    size = first(dim, _DIM_VALUE)
    if size is not None:
        return number(size)
    return text(dim, _DIM_PARAM) or None

"""Nested arguments and results as a list of tensors and a schema: the same structure with a stub for each tensor."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from onward.errors import OnwardError

# What they nest, further down, is again of these kinds.
ORTModelInputOutputType = None | str | int | bool | float | torch.Tensor | Sequence[Any] | Mapping[str, Any]


class UnsupportedDataError(OnwardError, TypeError):
    """Something in a structure is neither a tensor, nor a constant, nor a list or a dictionary of such."""


class PrimitiveType:
    """Numbers and booleans of Python."""

    _primitive_types: ClassVar[set[type]] = {int, bool, float}

    @staticmethod
    def is_primitive_type(value: Any) -> bool:
        """Whether it is one."""
        return type(value) in PrimitiveType._primitive_types

    @staticmethod
    def get_tensor(value: Any, device: torch.device | None) -> torch.Tensor:
        """It as a tensor."""
        return torch.tensor(value, device=device)

    @staticmethod
    def get_primitive_dtype(value: Any) -> str:
        """Its type as a text; that of a boolean has its value, so that others have other schemas."""
        return f"{type(value)!s}_{value}" if isinstance(value, bool) else str(type(value))


@dataclass(repr=False, slots=True)
class _TensorStub:
    """Where a tensor is, and what it is like."""

    tensor_idx: int
    name: str | None = None
    dtype: Any = None
    shape: Any = None
    shape_dims: int | None = None

    def __repr__(self) -> str:
        known = ((field, getattr(self, field)) for field in ("tensor_idx", "name", "dtype", "shape", "shape_dims"))
        return f"_TensorStub({','.join(f'{field}={value}' for field, value in known if value is not None)})"


ORTModelInputOutputSchemaType = None | str | int | bool | float | _TensorStub | Sequence[Any] | Mapping[str, Any]


def extract_data_and_schema(
    data: Any, constant_as_tensor: bool = False, device: torch.device | None = None
) -> tuple[list[torch.Tensor], Any]:
    """The tensors of a structure, dictionaries in the order of their keys, and its schema.

    Args:
        data: tensors, constants and None, in lists, tuples and dictionaries.
        constant_as_tensor: whether numbers and booleans are tensors, too.
        device: where these are.
    """
    tensors: list[torch.Tensor] = []

    def stub(leaf: Any, name: str) -> Any:
        if leaf is None or isinstance(leaf, (str, _TensorStub)):
            return leaf
        if isinstance(leaf, torch.Tensor):
            dtype, tensor = str(leaf.dtype), leaf
        elif not PrimitiveType.is_primitive_type(leaf):
            raise UnsupportedDataError(f"Unsupported flatten data type: {type(leaf)}")
        elif not constant_as_tensor:
            return leaf
        else:
            dtype, tensor = PrimitiveType.get_primitive_dtype(leaf), PrimitiveType.get_tensor(leaf, device)
        tensors.append(tensor)
        return _TensorStub(len(tensors) - 1, name=name, dtype=dtype, shape_dims=tensor.ndim)

    return tensors, _mapped(data, stub)


def unflatten_data_using_schema(data: Sequence[torch.Tensor], schema: Any) -> Any:
    """The structure of a schema with these tensors."""

    def tensor(leaf: Any, _: str) -> Any:
        if isinstance(leaf, _TensorStub):
            return data[leaf.tensor_idx]
        if leaf is None or isinstance(leaf, str) or PrimitiveType.is_primitive_type(leaf):
            return leaf
        raise UnsupportedDataError(f"Unsupported flatten data type: {type(leaf)}")

    return _mapped(schema, tensor)


def _mapped(data: Any, function: Callable[[Any, str], Any], name: str = "") -> Any:
    """The structure with something else in the place of each leaf, which has a name by the way that leads to it."""

    def inner(value: Any, key: Any) -> Any:
        return _mapped(value, function, f"{name}_{key}" if name else str(key))

    if isinstance(data, Mapping):
        found: Any = copy.copy(data)
        for key in sorted(data, key=str):
            found[key] = inner(data[key], key)
        return found
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        values = [inner(value, place) for place, value in enumerate(data)]
        kind: Any = type(data)
        return kind._make(values) if hasattr(kind, "_make") else kind(values)
    return function(data, name)

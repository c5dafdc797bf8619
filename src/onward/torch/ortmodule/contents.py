"""What attributes of modules hold, as far as graphs depend on it."""

from __future__ import annotations

import array
import collections
import functools
import types
from typing import Any

import numpy as np
import torch
from torch import nn

from onward.torch.ortmodule.outside import is_installed

PLAIN = (bool, int, float, complex, str, bytes, type(None))
COLLECTIONS = (tuple, frozenset, list, set, dict, collections.deque)
ARRAYS = (np.ndarray, array.array)
DEEPEST = 4  # what lies deeper in objects does not count
_TENSORS = (torch.Tensor, nn.Parameter)
# Bytes, which take 20 microseconds to read. What is written to larger tensors by way of `.data`, which torch does not
# count, is not seen.
_LARGE = 1 << 16


class Same:
    """Equal to what is made of the very same object."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def state_of(tensor: torch.Tensor) -> tuple[int | None, ...]:
    """How often it was written to, which memory it has, and, where nobody counts, what is in it."""
    version = None if tensor.is_inference() else tensor._version
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or type(tensor) not in _TENSORS:
        return version, None, None
    if tensor.is_quantized or (tensor.nbytes > _LARGE and version is not None):
        return version, tensor.data_ptr(), None
    plain = tensor.detach().reshape(-1).resolve_conj().resolve_neg()
    return version, tensor.data_ptr(), elements_of(plain.view(torch.uint8).numpy())


def elements_of(values: Any) -> int:
    return hash(values.tobytes())


def is_plain(value: Any, depth: int = 0) -> bool:
    """Whether a private attribute may be a configuration; frameworks keep themselves in such, and much that changes."""
    if type(value) in PLAIN or isinstance(value, (*COLLECTIONS, *ARRAYS, np.generic, torch.Tensor)):
        return True
    if isinstance(value, (nn.Module, types.ModuleType)) or depth == DEEPEST:
        return False
    attributes = getattr(value, "__dict__", None)
    return not isinstance(attributes, dict) or all(is_plain(item, depth + 1) for item in attributes.values())


@functools.lru_cache(maxsize=4096)
def slots_of(kind: Any) -> tuple[str, ...]:
    found = [
        name for base in kind.__mro__ for name, v in vars(base).items() if isinstance(v, types.MemberDescriptorType)
    ]
    return () if is_installed(kind) else tuple(dict.fromkeys(found))


def in_slot(value: object, name: str) -> Any:
    """What is in a slot of an object, or in the cell of a variable; nothing if it is empty."""
    try:
        return getattr(value, name)
    except (AttributeError, ValueError):
        return None


def is_special(name: str, value: Any) -> bool:
    """What Python itself keeps in a class."""
    if not name.startswith("__"):
        return name == "_abc_impl"
    return name.endswith("__") and (name == "__init__" or not isinstance(value, types.FunctionType))

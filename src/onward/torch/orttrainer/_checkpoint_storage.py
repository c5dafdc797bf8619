"""Nested dictionaries in files: a safetensors file, with all that is no tensor as JSON among its metadata.

The original wrote HDF5, and pickled what the user added. Nothing is unpickled here.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from onward.errors import OnwardError
from onward.runtime.tensorfile import Entry, TensorFile, write
from onward.torch.orttrainer.engine import array_from, tensor_of
from onward.torch.orttrainer.refusal import InvalidValueError

_FORMAT, _CONTENT = "onward.orttrainer", "content"
_TENSOR = "tensor"
_NUMBERS = "biufc"


def save(save_obj: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a dictionary of arrays, tensors, numbers, texts and such dictionaries to a new file."""
    if not isinstance(save_obj, Mapping):
        raise InvalidValueError("Object to be saved must be a dictionary")
    if Path(path).exists():
        raise FileExistsError(f"{str(path)!r} exists already; a checkpoint is not written over it")
    entries: list[Entry] = []
    tree = _described(save_obj, "", entries)
    write(path, entries, {"format": _FORMAT, _CONTENT: json.dumps(tree)})


def load(path: str | os.PathLike[str], key: str | None = None) -> Any:
    """Read what `save` wrote, or a part of it: ``key="trainer_options/world_size"``.

    Numbers, and lists of them, come back as those of numpy, as they did from HDF5.
    """
    with TensorFile(path) as file:
        if file.metadata.get("format") != _FORMAT:
            raise InvalidValueError(f"{str(path)!r} is no checkpoint of ORTTrainer")
        tree = json.loads(file.metadata[_CONTENT])
        for part in filter(None, key.split("/")) if key else ():
            if not isinstance(tree, dict) or part not in tree:
                raise OnwardError(f"the checkpoint {str(path)!r} has no {key!r}")
            tree = tree[part]
        return _filled(tree, file)


def _described(value: Any, place: str, entries: list[Entry]) -> Any:
    """A value as JSON, its arrays as entries: dictionaries as they are, all else in a list that says what it is."""
    if isinstance(value, Mapping):
        return {str(key): _described(inner, f"{place}/{key}", entries) for key, inner in value.items()}
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        array = np.asarray(array_from(value))
        entries.append(Entry(place, array.shape, array.dtype, lambda: array))
        return [_TENSOR, place]
    if value is None or isinstance(value, (bool, int, float, str)):
        return ["value", value]
    if isinstance(value, bytes):
        return ["value", value.decode()]
    if isinstance(value, (list, tuple)):
        return ["list", [_described(inner, f"{place}/{index}", entries) for index, inner in enumerate(value)]]
    raise InvalidValueError(f"{place!r} is a {type(value).__name__}, which a checkpoint cannot hold")


def _filled(tree: Any, file: TensorFile) -> Any:
    if isinstance(tree, dict):
        return {key: _filled(inner, file) for key, inner in tree.items()}
    kind, content = tree
    if kind == "list":
        values = [_filled(inner, file) for inner in content]
        numbers = all(isinstance(value, np.generic) for value in values)
        return np.array(values) if values and numbers else values
    if kind == _TENSOR:
        return file.read(content)
    return content if content is None or isinstance(content, str) else np.array(content)[()]


def to_serialized_hex(user_dict: Any) -> str:
    """What a user wants to be kept, as a text: numbers, texts, arrays, tensors, and lists and dictionaries of them."""
    return json.dumps(_packed(user_dict)).encode().hex()


def from_serialized_hex(serialized_hex: str | bytes) -> Any:
    """The same back."""
    text = serialized_hex.decode() if isinstance(serialized_hex, bytes) else serialized_hex
    try:
        return _unpacked(json.loads(bytes.fromhex(text)))
    except (ValueError, TypeError, KeyError) as error:
        raise OnwardError(f"the user_dict of the checkpoint cannot be read: {error}") from error


def _packed(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        kind = "tensor" if isinstance(value, torch.Tensor) else "array" if isinstance(value, np.ndarray) else "number"
        array = np.ascontiguousarray(array_from(value))
        if array.dtype.kind not in _NUMBERS:
            raise InvalidValueError(f"an array of {array.dtype} cannot be kept in a checkpoint")
        content = base64.b64encode(array.tobytes()).decode()
        return {kind: [array.dtype.str, list(np.shape(array_from(value))), content]}
    if isinstance(value, Mapping):
        return {"dict": [[_packed(key), _packed(inner)] for key, inner in value.items()]}
    for kind, cls in (("list", list), ("tuple", tuple), ("set", set)):
        if isinstance(value, cls):
            return {kind: [_packed(inner) for inner in value]}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    raise InvalidValueError(f"a {type(value).__name__} cannot be kept in a checkpoint; give numbers, texts and tensors")


def _unpacked(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == "dict":
        return {_unpacked(key): _unpacked(inner) for key, inner in content}
    if kind == "bytes":
        return base64.b64decode(content)
    if kind in ("list", "tuple", "set"):
        return {"list": list, "tuple": tuple, "set": set}[kind](_unpacked(inner) for inner in content)
    dtype = np.dtype(content[0])
    if dtype.kind not in _NUMBERS:
        raise ValueError(f"{dtype} is no type of numbers")
    array = np.frombuffer(bytearray(base64.b64decode(content[2])), dtype).reshape(content[1])
    if kind == "tensor":
        return tensor_of(array)
    return array if kind == "array" else array[()]

"""Plain values with arrays among them, as JSON and a list of arrays, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from onward.errors import OnwardError

_ARRAY, _KEYS = "$array", "$keys"


def pack(value: Any, arrays: dict[str, np.ndarray], what: str) -> Any:
    """`value` as JSON has it; arrays are added to `arrays`, under names that take their places."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item() if value.dtype.kind in "biuf" else str(value)
    if isinstance(value, np.ndarray) and value.dtype.kind not in "OUSTMm":
        name = f"{what}/{len(arrays)}"
        arrays[name] = value
        return {_ARRAY: name}
    if isinstance(value, (list, tuple)):
        return [pack(item, arrays, what) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: pack(item, arrays, what) for key, item in value.items()}
    if isinstance(value, dict):
        return {_KEYS: [[pack(key, arrays, what), pack(item, arrays, what)] for key, item in value.items()]}
    raise OnwardError(
        f"{value!r:.60} ({type(value).__name__}) cannot be saved in a checkpoint; what callbacks and metrics remember "
        "is made of numbers, texts, arrays, lists and dicts"
    )


def unpack(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The value that `pack` was given, with lists in the place of tuples."""
    if isinstance(value, list):
        return [unpack(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {_ARRAY}:
        if value[_ARRAY] not in arrays:
            raise OnwardError(f"the checkpoint is damaged: it lacks the array {value[_ARRAY]!r}")
        return arrays[value[_ARRAY]]
    if set(value) == {_KEYS}:
        return {_hashable(unpack(key, arrays)): unpack(item, arrays) for key, item in value[_KEYS]}
    return {key: unpack(item, arrays) for key, item in value.items()}


def _hashable(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key

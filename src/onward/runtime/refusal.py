"""What is wrong with the inputs of a step, in words of our own: before it runs where that can be seen, else after."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from onward.errors import OnwardError
from onward.signature import CHECK

# Names of nodes that refuse something; a number at the end makes the name unique.
_REFUSED = re.compile(rf"Name:'{CHECK}(.+?)(?:_\d+)?' Status Message")

Shapes = Mapping[str, Sequence[int]]


def check_targets(shapes: Shapes, declared: Mapping[str, Sequence[Any] | None], targets: Collection[str]) -> None:
    """Compare the sizes of targets with those of inputs that the model gives the same name.

    The graph compares them with the prediction itself. Here, a name that the inputs use for two sizes says nothing.
    """
    sizes: dict[str, set[int]] = {}
    owners: dict[str, str] = {}
    for name in (name for name in shapes if name not in targets):
        for symbol, size in zip(declared[name] or (), shapes[name], strict=False):
            sizes.setdefault(symbol, set()).add(size)
            owners[symbol] = name
    for name in (name for name in shapes if name in targets):
        for symbol, size in zip(declared[name] or (), shapes[name], strict=False):
            if isinstance(symbol, str) and len(sizes.get(symbol, ())) == 1 and size not in sizes[symbol]:
                raise OnwardError(
                    f"input {name!r} has shape {list(shapes[name])}, but {owners[symbol]!r} has {min(sizes[symbol])} "
                    f"as {symbol!r}; these must be equal"
                )


def explain(said: str, model: str, feeds: Mapping[str, Any], targets: Collection[str]) -> str:
    """Why a model could not run, before what onnxruntime says about it."""
    arrays = {name: value if isinstance(value, np.ndarray) else value.numpy() for name, value in feeds.items()}
    refused = _REFUSED.search(said)
    empty = [name for name, array in arrays.items() if not array.size]
    if empty:
        listed = ", ".join(f"{name!r} of shape {list(arrays[name].shape)}" for name in empty)
        why = f"there is nothing in {listed}; leave empty batches out. "
    else:
        why = f"{refused.group(1)}. " if refused else ""
    given = "; ".join(f"{name!r} {_described(array, name in targets)}" for name, array in arrays.items())
    return f"{why}{model!r} could not run. Given were {given}. onnxruntime says: {said}"


def _described(array: np.ndarray, is_target: bool) -> str:
    values = ""
    if is_target and array.size and array.dtype.kind in "iu":
        values = f" with values from {array.min()} to {array.max()}"
    return f"of shape {list(array.shape)}{values}"

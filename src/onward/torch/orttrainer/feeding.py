"""What a step is fed, in a row or by name, checked against its description; and what it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from onward.torch.orttrainer.refusal import require


def fed(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs by name: those in a row first, which may be in a list, then those that are named."""
    given = args[0] if len(args) == 1 and isinstance(args[0], list) else args
    require(len(given) <= len(names), f"the model takes {list(names)}, but {len(given)} inputs were given")
    feeds = dict(zip(names, given, strict=False))
    for name, value in kwargs.items():
        require(name in names, f"there is no input {name!r}; the model takes {list(names)}")
        require(name not in feeds, f"the input {name!r} was given twice")
        feeds[name] = value
    return feeds


def check_sizes(feeds: Mapping[str, Any], shapes: Mapping[str, Sequence[int | str]]) -> None:
    """Sizes that have one name have to be equal."""
    sizes: dict[str, int] = {}
    for name, value in feeds.items():
        for size, axis in zip(np.shape(value), shapes.get(name, ()), strict=False):
            if isinstance(axis, str):
                require(sizes.setdefault(axis, size) == size, f"Mismatch in dynamic shape {axis}")


def returned(results: Mapping[str, torch.Tensor], fetches: Sequence[str]) -> Any:
    """What a step returns: the values of these names, a single one as it is."""
    values = [results[name] for name in fetches]
    return values[0] if len(values) == 1 else values

"""Something to feed a model with: the first rows of data, or random numbers of the shapes that it takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onward.cli.model import ModelView, shown
from onward.cli.preparation import prepare
from onward.cli.recipe import Recipe
from onward.errors import OnwardError
from onward.trainer.field import Field

Array = np.ndarray[Any, Any]

_SIDE, _LENGTH = 32, 16  # of pictures, and of all other axes whose size is not known
_TOKENS = 8  # random whole numbers are below this: almost every vocabulary has so many


def first_rows(recipe: Recipe, rows: int) -> dict[str, Array]:
    """What the inputs get of the first rows of the data of a recipe."""
    made = prepare(recipe, labelled=False)
    given = made.part(made.table.take(np.arange(min(rows, made.table.rows))))[0]
    return {field.name: field.fit(np.asarray(given[field.name])) for field in made.view.inputs}


def random_rows(view: ModelView, rows: int, sizes: Mapping[str, int], seed: int = 0) -> dict[str, Array]:
    """Random numbers for all inputs; `sizes` are those of dimensions by name, or by place: x[1]."""
    random = np.random.default_rng(seed)
    unknown = [name for name in sizes if name not in _dimensions(view)]
    if unknown:
        raise OnwardError(f"the model has no dimension {unknown[0]!r}; it has {', '.join(_dimensions(view)) or 'none'}")
    return {field.name: _drawn(field, rows, sizes, random) for field in view.inputs}


def _dimensions(view: ModelView) -> list[str]:
    names = [size for field in view.inputs for size in field.shape or () if isinstance(size, str)]
    places = [
        f"{f.name}[{axis}]" for f in view.inputs for axis, s in enumerate(f.shape or ()) if not isinstance(s, int)
    ]
    return list(dict.fromkeys([*names, *places]))


def _drawn(field: Field, rows: int, sizes: Mapping[str, int], random: np.random.Generator) -> Array:
    if field.shape is None or field.dtype is None or field.dtype.kind == "O":
        raise OnwardError(
            f"input {field.name!r} of the model takes {shown(field.shape)} of text or of any shape; --data"
        )
    shape = []
    for axis, size in enumerate(field.shape):
        usual = rows if axis == 0 else _SIDE if len(field.shape) == 4 else _LENGTH
        named = sizes.get(f"{field.name}[{axis}]", sizes.get(size) if isinstance(size, str) else None)
        shape.append(size if isinstance(size, int) else named if named is not None else usual)
    if field.dtype.kind == "b":
        return np.ones(shape, bool)
    if field.dtype.kind in "iu":
        return random.integers(0, 2 if "mask" in field.name else _TOKENS, shape).astype(field.dtype)
    return random.normal(size=shape).astype(field.dtype)

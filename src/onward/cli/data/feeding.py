"""Columns as the arrays that the inputs of a model are fed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.cli.data.assignment import Assigned, fits, shape_of
from onward.cli.data.axes import Arrangement, arrange
from onward.cli.data.specification import Specification
from onward.cli.data.table import Column, Kind, Table
from onward.cli.model import shown
from onward.cli.recipe import Recipe
from onward.errors import OnwardError
from onward.graph.naming import quoted
from onward.trainer.field import Field

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Feed:
    """How one input gets its values."""

    field: Field
    spec: Specification

    def array(self, table: Table, recipe: Recipe) -> Any:
        """The values of all rows: an array, or something that reads rows when they are needed."""
        if not self.spec.columns:
            raise AssertionError("filled once the others are known")
        columns = [table.column(name) for name in self.spec.columns]
        if columns[0].kind is Kind.IMAGE:
            from onward.cli.data.image import images

            return images(columns[0], self.field, recipe.image)
        if columns[0].kind is Kind.AUDIO:
            from onward.cli.data.audio import sounds

            return sounds(columns[0], self.field, recipe.audio)
        return self._fitted(_beside(columns, self.field), recipe)

    def _fitted(self, array: Array, recipe: Recipe) -> Array:
        how = arrange(array.shape, self.field.shape)
        if how is None:
            raise OnwardError(
                f"input {self.field.name!r} of the model takes {shown(self.field.shape)}, but {self.spec} is "
                f"{shown(array.shape)}"
            )
        array = how.apply(array)
        if is_picture(self.field, array) and recipe.image.scale is not None:
            array = (array * np.float32(recipe.image.scale)).astype(np.float32)
        return array

    def said(self, table: Table, recipe: Recipe) -> str:
        """What it gets, for people."""
        if not self.spec.columns:
            return "positions 0, 1, 2 ..." if self.spec.constant is None else f"{self.spec.constant:g} everywhere"
        columns = [table.column(name) for name in self.spec.columns]
        names = self.spec.columns
        listed = ", ".join(names) if len(names) <= 6 else f"{names[0]} ... {names[-1]} ({len(names)} columns)"
        if columns[0].kind in (Kind.IMAGE, Kind.AUDIO):
            return f"{listed}: {_of_files(columns[0], recipe)}"
        how = arrange(shape_of(columns), self.field.shape) or Arrangement()
        scaled = recipe.image.scale is not None and is_picture(self.field, columns[0].values)
        extra = [how.said, f"times {recipe.image.scale:.4g}" if scaled else ""]
        return "; ".join([listed, *filter(None, extra)])


def is_picture(field: Field, array: Array) -> bool:
    """Whether numbers of an array are those of pictures, which options on pictures change."""
    assert field.dtype is not None
    return field.dtype.kind == "f" and field.shape is not None and len(field.shape) >= 3 and array.dtype.kind in "iuf"


def _of_files(column: Column, recipe: Recipe) -> str:
    if column.kind is Kind.IMAGE:
        from onward.cli.data.image import described

        return described(recipe.image)
    from onward.cli.data.audio import described as heard

    return heard(recipe.audio)


def check_given(table: Table, feeds: Sequence[Feed]) -> None:
    """Refuse what a user says about an input that it cannot take."""
    for feed in feeds:
        columns = [table.column(name) for name in feed.spec.columns]
        if not columns or fits(feed.field, columns):
            continue
        texts = [column.name for column in columns if column.kind is Kind.TEXT]
        if texts:
            raise OnwardError(
                f"input {feed.field.name!r} of the model takes {feed.field.dtype}, but {quoted(texts)} is text; leave "
                f"it out, or write it as numbers first"
            )
        raise OnwardError(
            f"input {feed.field.name!r} of the model takes {shown(feed.field.shape)}, but {feed.spec} is "
            f"{shown(shape_of(columns))}"
        )


def feeds_of(fields: Sequence[Field], assigned: Assigned) -> list[Feed]:
    return [Feed(field, assigned[field.name]) for field in fields]


def arrays(table: Table, feeds: Sequence[Feed], recipe: Recipe) -> dict[str, Any]:
    """What every input is fed, by name."""
    found = {feed.field.name: feed.array(table, recipe) for feed in feeds if feed.spec.columns}
    for feed in feeds:
        if not feed.spec.columns:
            found[feed.field.name] = _filled(feed, found, table.rows)
    return {feed.field.name: found[feed.field.name] for feed in feeds}


def _filled(feed: Feed, others: Mapping[str, Any], rows: int) -> Array:
    """A constant, or positions, in a shape that the model takes: unknown sizes are those of the other inputs."""
    field, value = feed.field, feed.spec.constant
    shape = field.shape if field.shape is not None else ()
    if not shape:
        return np.array(0 if value is None else value, field.dtype)
    like = next((x.shape for x in others.values() if len(x.shape) == len(shape)), None)
    sizes = [
        size if isinstance(size, int) else like[axis] if like is not None else None
        for axis, size in enumerate(shape[1:], 1)
    ]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        raise OnwardError(
            f"input {field.name!r} of the model has shape {shown(shape)}, of which not all sizes are known"
        )
    if value is None:
        return np.broadcast_to(np.arange(known[0]), (rows, *known)).astype(field.dtype)
    return np.full((rows, *known), value, field.dtype)


def _beside(columns: Sequence[Column], field: Field) -> Array:
    """Columns as one array."""
    if field.dtype == np.dtype(object):
        return np.stack([column.values for column in columns], axis=1)
    if len(columns) == 1:
        return columns[0].values
    flat = [column.values.reshape(len(column), -1) for column in columns]
    return np.concatenate(flat, axis=1)

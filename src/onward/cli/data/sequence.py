"""Tokens: a model that reads them learns which one follows."""

from __future__ import annotations

from typing import Any

import numpy as np

from onward.cli.data.assignment import usual_label
from onward.cli.data.table import Column, Kind, Table
from onward.cli.data.tokens import MASK, reader_of
from onward.cli.model import ModelView
from onward.cli.recipe import Recipe
from onward.errors import OnwardError

Array = np.ndarray[Any, Any]

NEXT = "next:"  # a label: the tokens of a column, each one place earlier
_WINDOW = 64
_IGNORED = -100


def predicted(recipe: Recipe, view: ModelView, table: Table) -> str | None:
    """The column of tokens of which the next ones are learned; None if something else is."""
    for label in recipe.data.label:
        if label.startswith(NEXT) and label not in table.columns:
            return table.column(label.removeprefix(NEXT)).name
    if recipe.data.label or recipe.training.loss == "none" or usual_label(table, view.inputs) is not None:
        return None
    whole = [column for column in table.columns.values() if _is_tokens(column) and column.name != MASK]
    outputs = [view.shape(name) for name in view.floating_outputs]
    scores = any(shape is not None and len(shape) == 3 for shape in outputs)
    return whole[0].name if len(whole) == 1 and reader_of(view) is not None and scores else None


def window(recipe: Recipe, view: ModelView, column: Column, notes: list[str]) -> int | None:
    """How many tokens a row has, where the data is one long text."""
    notes.append(f"the label is the next token of {column.name!r} (--label names another)")
    if column.values.ndim == 2:
        return None
    length = _length(recipe, view)
    notes.append(f"{len(column):,} tokens in a row are cut into pieces of {length} (--window)")
    return length


def in_pieces(recipe: Recipe, view: ModelView, table: Table, notes: list[str]) -> Table:
    """The table for prediction: one long row of tokens is cut as it was for training, and the label is not needed."""
    name = predicted(recipe, view, table)
    if name is None:
        return table
    recipe.data.label = []
    tokens = table.column(name).values
    if tokens.ndim == 2:
        return table
    length = _length(recipe, view)
    count = len(tokens) // length
    if not count:
        raise OnwardError(f"{name!r} has {len(tokens)} tokens, which is not one piece of {length}: --window")
    rest = f"; the last {len(tokens) % length} are left out" if len(tokens) % length else ""
    notes.append(f"{len(tokens):,} tokens in a row are cut into pieces of {length} (--window){rest}")
    pieces = np.asarray(tokens[: count * length]).reshape(count, length)
    return Table({name: Column(name, Kind.ARRAY, pieces)}, table.what, table.path)


def _length(recipe: Recipe, view: ModelView) -> int:
    """How many tokens a piece has: as was asked for, as many as the model takes, or a usual number."""
    reader = reader_of(view)
    fixed = None if reader is None or reader.shape is None else reader.shape[1]
    return recipe.data.window or (fixed if isinstance(fixed, int) else _WINDOW)


def with_next(table: Table, name: str, length: int | None, view: ModelView) -> Table:
    """The table with a column of the tokens that follow."""
    tokens = table.column(name).values
    if tokens.dtype.kind not in "iu" or tokens.ndim > 2:
        raise OnwardError(f"{name!r} is no list of tokens; give whole numbers, [rows, tokens] or one long row")
    if length is not None:
        count = (len(tokens) - 1) // length
        if not count:
            raise OnwardError(f"{name!r} has {len(tokens)} tokens, which is not one piece of {length}: --window")
        first = np.asarray(tokens[: count * length]).reshape(count, length)
        second = np.asarray(tokens[1 : count * length + 1]).reshape(count, length)
    elif _takes(view, tokens.shape[1]):
        # As many as the model takes: nothing follows the last one.
        first = np.asarray(tokens)
        second = np.concatenate([_following(table, name), np.full((len(first), 1), _IGNORED)], axis=1)
    else:
        first, second = np.asarray(tokens[:, :-1]), _following(table, name)
    others = {} if length is not None else {name: _cut(column, first) for name, column in table.columns.items()}
    columns = {**others, name: Column(name, Kind.ARRAY, first)}
    columns[NEXT + name] = Column(NEXT + name, Kind.ARRAY, second.astype(np.int64))
    return Table(columns, table.what, table.path, table.notes)


def _following(table: Table, name: str) -> Array:
    """The tokens behind the first of each row; what only fills rows up does not count."""
    tokens = np.asarray(table.column(name).values)[:, 1:].astype(np.int64)
    mask = table.columns.get(MASK)
    return tokens if mask is None else np.where(mask.values[:, 1:] == 1, tokens, _IGNORED)


def _cut(column: Column, first: Array) -> Column:
    """A mask of tokens has as many places as the tokens."""
    if column.name != MASK or column.kind is not Kind.ARRAY:
        return column
    return Column(column.name, column.kind, column.values[:, : first.shape[1]])


def _is_tokens(column: Column) -> bool:
    return column.kind in (Kind.ARRAY, Kind.NUMBER) and column.values.dtype.kind in "iu" and column.values.ndim <= 2


def _takes(view: ModelView, length: int) -> bool:
    reader = reader_of(view)
    return reader is not None and reader.shape is not None and reader.shape[1] == length

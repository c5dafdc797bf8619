"""Rows with missing values: an error by default, since any number in their place would be a guess."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onward.cli.data.table import Column, Kind, Table
from onward.errors import OnwardError

WAYS = ("error", "drop", "mean", "zero", "keep")


def without(table: Table, names: Sequence[str], way: str, notes: list[str]) -> Table:
    """The table with no missing value in the columns `names`."""
    if way not in WAYS:
        raise OnwardError(f"--missing is one of {', '.join(WAYS)}, not {way!r}")
    found = table.first_missing(names)
    if found is None:
        return table
    column, count, row = found
    if way == "keep":
        return table
    if way == "error":
        raise OnwardError(
            f"column {column.name!r} has {count} missing values, the first in row {row}; --missing drop leaves such "
            "rows out, mean and zero fill in numbers, keep leaves them to the model"
        )
    if way == "drop":
        lacking = np.any([table.columns[name].missing for name in names], axis=0)
        notes.append(f"{int(lacking.sum())} of {table.rows} rows have missing values, and are left out")
        return table.take(np.flatnonzero(~lacking))
    columns = {name: _filled(each, way) if name in names else each for name, each in table.columns.items()}
    notes.append(f"missing values become {'the mean of their column' if way == 'mean' else 'zero'}")
    return Table(columns, table.what, table.path)


def _filled(column: Column, way: str) -> Column:
    missing = column.missing
    if not missing.any():
        return column
    if column.kind is not Kind.NUMBER:
        raise OnwardError(
            f"missing values of column {column.name!r} ({column.type_name}) cannot be filled; --missing drop"
        )
    values = column.values.copy()
    values[missing] = 0.0 if way == "zero" else values[~missing].mean()
    return Column(column.name, column.kind, values)

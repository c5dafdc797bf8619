"""Data of which any rows can be taken at once: columns, data sets of Hugging Face and of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from onward.errors import OnwardError
from onward.trainer.assignment import SAMPLE_WEIGHT, Fields, Named, by_name, by_position
from onward.trainer.column import Column, Rows, as_array, check_lengths, column, scalar
from onward.trainer.field import Field, ragged


class Table(Protocol):
    """Rows that can be taken in any order, as values by the names of fields."""

    rows: int
    row_size: int | None  # bytes of each row, where it is in memory
    is_fixed: bool  # whether a row is the same each time it is taken

    def take(self, rows: Rows) -> Named: ...


class ColumnTable:
    """Arrays and the like, one for each field."""

    is_fixed = True

    def __init__(self, named: Named, fields: Fields) -> None:
        known = {field.name: field for field in fields.all()} | {SAMPLE_WEIGHT: fields.weight or Field(SAMPLE_WEIGHT)}
        self._columns: dict[str, Column] = {
            name: column(value, known[name]) for name, value in named.items() if known[name].has_rows
        }
        self.rows = check_lengths(self._columns)
        for name, value in named.items():
            if not known[name].has_rows:
                self._columns[name] = scalar(value, known[name], self.rows)
        in_memory = all(values.is_in_memory for values in self._columns.values())
        first = self.take(slice(0, 1)).values() if in_memory else []
        self.row_size = sum(array.nbytes for array in first) if in_memory else None

    def take(self, rows: Rows) -> Named:
        return {name: values.take(rows) for name, values in self._columns.items()}


class PartOfTable:
    """Some rows of a table, by their numbers."""

    def __init__(self, table: Table, rows: np.ndarray) -> None:
        self._table, self.numbers = table, rows
        self.rows, self.row_size, self.is_fixed = len(rows), table.row_size, table.is_fixed

    def take(self, rows: Rows) -> Named:
        return self._table.take(self.numbers[rows])


class DatasetTable:
    """A data set of Hugging Face; of one that computes its rows itself (`set_transform`), what that returns."""

    row_size: int | None = None

    def __init__(self, dataset: Any, fields: Fields, targets: Any, weight: Any) -> None:
        if not fields.needs_targets:
            targets = weight = None
        self._fields, self._targets, self._weight = fields, targets, weight
        self.rows, self.is_fixed = len(dataset), not is_computed(dataset)
        if self.rows == 0:
            raise OnwardError("there is no data: the data set has no rows")
        if not self.is_fixed:
            self._views = [dataset]
            return
        # By name, so that columns of other kinds are not read. Unless told otherwise, numbers come as float32.
        used = by_name({name: name for name in dataset.column_names}, fields, targets, weight, strict=False)
        wide = {field.name for field in fields.all() if field.dtype == np.float64}
        groups: tuple[tuple[set[str], dict[str, Any]], ...] = (
            ({used[name] for name in used if name not in wide}, {}),
            ({used[name] for name in used if name in wide}, {"dtype": np.float64}),
        )
        self._views = [
            dataset.with_format("numpy", columns=sorted(names), **options) for names, options in groups if names
        ]

    def take(self, rows: Rows) -> Named:
        where = rows if isinstance(rows, slice) else rows.tolist()
        values: dict[str, Any] = {}
        for view in self._views:
            values.update(view[where])
        return from_dataset(values, self._fields, self._targets, self._weight)


class SampleTable:
    """A data set of torch: a sample for each number, of which batches are made."""

    row_size: int | None = None
    is_fixed = False  # it may draw what it changes

    def __init__(self, dataset: Any, fields: Fields) -> None:
        self._dataset, self._fields = dataset, fields
        self.rows = len(dataset)
        if self.rows == 0:
            raise OnwardError("there is no data: the data set has no samples")

    def take(self, rows: Rows) -> Named:
        numbers = range(self.rows)[rows] if isinstance(rows, slice) else rows.tolist()
        samples = [self._dataset[number] for number in numbers]
        first = samples[0]
        if isinstance(first, Mapping):
            return by_name({name: stacked([sample[name] for sample in samples], name) for name in first}, self._fields)
        if isinstance(first, (tuple, list)):
            items = [stacked(list(part), f"item {index}") for index, part in enumerate(zip(*samples, strict=True))]
            return by_position(items, self._fields)
        return by_position([stacked(samples, "the samples")], self._fields)


def from_dataset(values: Mapping[str, Any], fields: Fields, targets: Any, weight: Any) -> Named:
    """A batch of a data set of Hugging Face, which may have more columns than are wanted."""
    named = by_name(values, fields, targets, weight, strict=False)
    return {name: stacked(value, repr(name)) if isinstance(value, list) else value for name, value in named.items()}


def is_computed(dataset: Any) -> bool:
    """Whether a data set of Hugging Face has a function of the user's own that makes its rows."""
    form = getattr(dataset, "format", None)
    return isinstance(form, Mapping) and form.get("type") == "custom"


def stacked(values: Sequence[Any], what: str) -> np.ndarray:
    """Values of single rows as one array."""
    arrays = [as_array(value, what) for value in values]
    if len({array.shape for array in arrays}) > 1:
        raise ragged(what)
    return np.stack(arrays)

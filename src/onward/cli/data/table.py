"""Data as columns of the same number of rows, whatever it came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from onward.cli.console import number
from onward.cli.files import near
from onward.errors import OnwardError, UnknownNameError
from onward.graph.naming import quoted


class Kind(Enum):
    """What a column has in each row."""

    NUMBER = "number"
    TEXT = "text"
    ARRAY = "array"
    IMAGE = "image"
    AUDIO = "audio"


@dataclass(frozen=True)
class Column:
    """One value for each row: numbers (NaN is missing), texts (None is missing), arrays, or the names of files.

    Attributes:
        folder: where the files are.
    """

    name: str
    kind: Kind
    values: np.ndarray[Any, Any]
    folder: Path = field(default_factory=Path)

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: np.ndarray[Any, Any]) -> Column:
        return Column(self.name, self.kind, self.values[rows], self.folder)

    @property
    def missing(self) -> np.ndarray[Any, Any]:
        """Which rows have no value."""
        if self.kind is Kind.NUMBER:
            return np.isnan(self.values) if self.values.dtype.kind == "f" else np.zeros(len(self), bool)
        if self.kind is Kind.ARRAY:
            if self.values.dtype.kind != "f":
                return np.zeros(len(self), bool)
            return np.isnan(self.values.reshape(len(self), -1)).any(axis=1)
        return np.array([value is None for value in self.values], bool)

    @property
    def is_integer(self) -> bool:
        """Whether its numbers are whole ones, whatever their type; missing ones do not count."""
        if self.kind is not Kind.NUMBER:
            return False
        if self.values.dtype.kind in "iub":
            return True
        known = self.values[~self.missing]
        return bool(known.size and np.all(np.isfinite(known)) and np.all(known == np.round(known)))

    @property
    def type_name(self) -> str:
        if self.kind is Kind.NUMBER:
            return "integer" if self.is_integer else "number"
        if self.kind is Kind.ARRAY:
            return f"{self.values.dtype} [{', '.join(map(str, self.values.shape[1:]))}]"
        return self.kind.value

    @property
    def range(self) -> str:
        """What values there are: from the lowest to the highest number, or the most frequent texts."""
        if self.kind in (Kind.IMAGE, Kind.AUDIO):
            return f"{self.values[0]} ..." if len(self) else ""
        if self.kind is Kind.TEXT:
            counts = Counter(value for value in self.values if value is not None)
            shown = ", ".join(f"{text[:20]} ({count})" for text, count in counts.most_common(4))
            return shown + (f", and {len(counts) - 4} more" if len(counts) > 4 else "")
        if self.values.dtype.kind not in "iubf" or not self.values.size:
            return ""
        numbers = self.values.astype(np.float64, copy=False)
        known = numbers[np.isfinite(numbers)]
        if not known.size:
            return "no finite number"
        odd = "" if np.isfinite(numbers[~np.isnan(numbers)]).all() else ", and infinite ones"
        return f"{number(float(known.min()))} to {number(float(known.max()))}{odd}"


@dataclass(frozen=True)
class Table:
    """Columns by name.

    Attributes:
        what: what it came from, for people: "csv file".
        notes: what was noticed while it was read.
        validation: a second part of the data that came with it.
    """

    columns: dict[str, Column]
    what: str
    path: Path
    notes: Sequence[str] = ()
    validation: Table | None = None

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise OnwardError(
                f"{str(self.path)!r} has parts of different lengths: "
                f"{', '.join(f'{name} {length}' for name, length in lengths.items())}; all of them need a row for each "
                "sample"
            )
        if not lengths or not self.rows:
            raise OnwardError(f"{str(self.path)!r} has no rows")

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values())))

    def take(self, rows: np.ndarray[Any, Any]) -> Table:
        columns = {name: column.take(rows) for name, column in self.columns.items()}
        return Table(columns, self.what, self.path)

    def column(self, name: str) -> Column:
        """A column by its name, or by its place."""
        if name in self.columns:
            return self.columns[name]
        if name.isdigit() and int(name) < len(self.columns):
            return list(self.columns.values())[int(name)]
        raise UnknownNameError(
            f"{str(self.path)!r} has no column {name!r}; it has {quoted(self.columns)}{near(name, self.columns)}"
        )

    def first_missing(self, names: Sequence[str]) -> tuple[Column, int, int] | None:
        """A column among these with missing values, how many it has, and the row of the first."""
        for name in names:
            missing = self.columns[name].missing
            if missing.any():
                return self.columns[name], int(missing.sum()), int(np.argmax(missing))
        return None

"""A table of texts, aligned by columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onward.errors import OnwardError


class Row:
    """A line of a table; another table may follow below it."""

    def __init__(self, columns: Sequence[Any]) -> None:
        self.columns = [str(column) for column in columns]
        self.annotation: PTable | None = None

    def append_annotation_table(self, ptable: PTable) -> None:
        """Let this table follow below."""
        self.annotation = ptable


class PTable:
    """Rows of as many columns as the first one has, sorted by the first column if asked for."""

    def __init__(self, sortable: bool = False) -> None:
        self._rows: list[Row] = []
        self._sortable = sortable

    def add_row(self, columns: Sequence[Any]) -> Row:
        """Add a line."""
        if self._rows and len(columns) != len(self._rows[0].columns):
            raise OnwardError(
                f"a row of {len(columns)} columns in a table of {len(self._rows[0].columns)}: {list(columns)}"
            )
        self._rows.append(Row(columns))
        return self._rows[-1]

    def get_string(self, first_column_width: int | None = None, second_column_width: int | None = None) -> str:
        """The table as text; columns 0 and 2 are at least as wide as said."""
        if not self._rows:
            return ""
        widths = [max(map(len, column)) for column in zip(*(row.columns for row in self._rows), strict=True)]
        for column, width in ((0, first_column_width), (2, second_column_width)):
            if width is not None and column < len(widths):
                widths[column] = max(width, widths[column])
        rows = sorted(self._rows, key=lambda row: row.columns[0]) if self._sortable else self._rows
        text = ""
        for row in rows:
            text += "".join(column.ljust(width + 2) for column, width in zip(row.columns, widths, strict=True)) + "\n"
            if row.annotation is not None:
                text += row.annotation.get_string(widths[0], widths[2] if len(widths) > 2 else None)
        return text

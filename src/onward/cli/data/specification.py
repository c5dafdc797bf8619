"""What an input gets, as users and recipes write it: `cols:a,b,c`, `cols:0-9`, `pixels`, `const:1`, `positions`."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass

from onward.cli.data.table import Table
from onward.errors import OnwardError

_RANGE = re.compile(r"(\d+)-(\d+)")
POSITIONS = "positions"
FORMS = "NAME=COLUMN, NAME=cols:0-9, NAME=cols:a,b,c, NAME=const:1 or NAME=positions"


@dataclass(frozen=True)
class Specification:
    """Some columns, a constant, or the numbers 0, 1, 2 ... along the second axis."""

    columns: tuple[str, ...] = ()
    constant: float | None = None

    def __str__(self) -> str:
        if self.constant is not None:
            return f"const:{self.constant:g}"
        if not self.columns:
            return POSITIONS
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow(self.columns)
        return f"cols:{line.getvalue()}"


def parse(text: str, table: Table) -> Specification:
    """Read what is to the right of `NAME=`."""
    if text == POSITIONS and text not in table.columns:
        return Specification()
    if text.startswith("const:"):
        try:
            return Specification(constant=float(text.removeprefix("const:")))
        except ValueError:
            raise OnwardError(f"{text!r} is no constant; write const:1") from None
    if not text.startswith("cols:"):
        return Specification((table.column(text).name,))
    names: list[str] = []
    for item in next(csv.reader([text.removeprefix("cols:")], skipinitialspace=True)):
        ends = _RANGE.fullmatch(item)
        if ends is None or item in table.columns:
            names.append(table.column(item).name)
            continue
        first, last = int(ends[1]), int(ends[2])
        if first > last or last >= len(table.columns):
            raise OnwardError(
                f"{item!r} are no columns of {str(table.path)!r}, which has 0 to {len(table.columns) - 1}"
            )
        names += list(table.columns)[first : last + 1]
    if not names:
        raise OnwardError(f"{text!r} names no columns; write {FORMS}")
    return Specification(tuple(names))

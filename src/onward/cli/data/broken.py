"""Files that cannot be read: an error that names the first, or left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from onward.cli.data.table import Column, Kind, Table
from onward.errors import OnwardError

SKIP = "; --broken skip leaves such files out"
_SHOWN = 3


def without(table: Table, names: Sequence[str], way: str, notes: list[str]) -> Table:
    """The table without rows whose pictures or sounds, in the columns `names`, cannot be read."""
    if way != "skip":
        return table
    columns = [table.columns[name] for name in dict.fromkeys(names)]
    bad = sorted({row for each in columns if each.kind in (Kind.IMAGE, Kind.AUDIO) for row in _broken(each)})
    if not bad:
        return table
    if len(bad) == table.rows:
        raise OnwardError(f"none of the {table.rows} files of {str(table.path)!r} can be read")
    files = next(column for column in columns if column.kind in (Kind.IMAGE, Kind.AUDIO)).values[bad]
    more = f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    notes.append(f"left out, since they cannot be read: {', '.join(map(repr, files[:_SHOWN]))}{more}")
    return table.take(np.setdiff1d(np.arange(table.rows), bad))


def _broken(column: Column) -> list[int]:
    check = _check_of(column)
    return [row for row, name in enumerate(column.values) if not _is_sound(column.folder / name, check)]


def _check_of(column: Column) -> Callable[[Path], object]:
    if column.kind is Kind.IMAGE:
        from onward.cli.data import image

        return image.check
    from onward.cli.data import wav

    return wav.read


def _is_sound(path: Path, check: Callable[[Path], object]) -> bool:
    try:
        check(path)
    except OnwardError:
        return False
    return True

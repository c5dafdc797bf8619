"""Tables in text files: csv, tsv and the like, read by the standard library."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onward.cli.data.table import Column, Kind, Table
from onward.errors import OnwardError

_DELIMITERS = ",;\t|"
_MISSING = frozenset(["", "na", "n/a", "nan", "null", "none", "?", "-"])
_TRUTH = {"true": 1, "false": 0, "yes": 1, "no": 0}
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+(e[+-]?\d+)?", re.IGNORECASE)


def read_delimited(path: Path) -> Table:
    """A table of a text file; a first line of names is told from one of numbers."""
    text = _text(path)
    delimiter = _delimiter(text, path)
    csv.field_size_limit(2**27)
    try:
        lines = [line for line in csv.reader(io.StringIO(text), delimiter=delimiter) if any(map(str.strip, line))]
    except csv.Error as error:
        raise OnwardError(f"{str(path)!r} is no table: {error}") from error
    if not lines:
        raise OnwardError(f"{str(path)!r} is empty")
    names, notes = [cell.strip() for cell in lines[0]], []
    if any(_is_number(name) for name in names) and not any(_is_name(name) for name in names):
        names = [f"c{index}" for index in range(len(names))]
        notes.append(f"the first line is numbers, so the columns are called {names[0]} to {names[-1]}")
    else:
        lines = lines[1:]
    _check(path, names, lines)
    cells = [[line[index].strip() for line in lines] for index in range(len(names))]
    with_comma = delimiter != "," and any(_DECIMAL_COMMA.fullmatch(cell) for column in cells for cell in column[:50])
    if with_comma:
        notes.append("numbers are written with a decimal comma")
    columns = {name: _column(name, values, with_comma, path.parent) for name, values in zip(names, cells, strict=True)}
    return Table(columns, "table", path, notes)


def _text(path: Path) -> str:
    content = path.read_bytes()
    for encoding in ("utf-8-sig", "utf-16") if content[:2] in (b"\xff\xfe", b"\xfe\xff") else ("utf-8-sig",):
        try:
            return content.decode(encoding)
        except UnicodeDecodeError:
            continue
    if b"\0" in content[:4096]:
        raise OnwardError(f"{str(path)!r} is no text; give a csv, parquet, npz or npy file, or a folder")
    return content.decode("latin-1")


def _delimiter(text: str, path: Path) -> str:
    """The character that cuts the first lines into most cells, the same number in each."""
    lines = text.splitlines()[:20]
    counts = {
        mark: [len(line) for line in csv.reader(lines, delimiter=mark) if any(map(str.strip, line))]
        for mark in ("\t" + _DELIMITERS if path.suffix == ".tsv" else _DELIMITERS)
    }
    return max(counts, key=lambda mark: (len(set(counts[mark])) == 1, max(counts[mark], default=0)))


def _check(path: Path, names: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise OnwardError(f"{str(path)!r} has two columns called {twice[0]!r}; rename one")
    for number, line in enumerate(lines, 2):
        if len(line) != len(names):
            raise OnwardError(
                f"{str(path)!r} has {len(names)} columns, but line {number} has {len(line)}: {','.join(line)[:60]!r}"
            )


def _column(name: str, cells: list[str], with_comma: bool, folder: Path) -> Column:
    known = [cell for cell in cells if cell.lower() not in _MISSING]
    if with_comma:
        known = [cell.replace(",", ".") for cell in known]
    numbers = _numbers(known)
    if numbers is None or not known:
        return text_column(name, [None if cell.lower() in _MISSING else cell for cell in cells], folder)
    if len(known) == len(cells):
        return Column(name, Kind.NUMBER, numbers)
    values = np.full(len(cells), np.nan)
    values[[cell.lower() not in _MISSING for cell in cells]] = numbers
    return Column(name, Kind.NUMBER, values)


def _numbers(cells: list[str]) -> np.ndarray[Any, Any] | None:
    """Cells as integers, as numbers, or as truth values; None if they are texts."""
    if not cells:
        return None
    for dtype in (np.int64, np.float64):
        try:
            return np.array(cells).astype(dtype)
        except (ValueError, OverflowError):
            continue
    if all(cell.lower() in _TRUTH for cell in cells) and len({cell.lower() for cell in cells}) == 2:
        return np.array([_TRUTH[cell.lower()] for cell in cells], bool)
    return None


def text_column(name: str, values: Sequence[str | None], folder: Path) -> Column:
    """Texts, or names of files in `folder` if all of them are."""
    array = np.empty(len(values), object)
    array[:] = values
    known = [value for value in values if value is not None]
    kind = file_kind(known[0]) if known else None
    if kind is not None and len(known) == len(values) and (folder / known[0]).is_file():
        absent = next(
            (value for value in known if file_kind(value) is not kind or not (folder / value).is_file()), None
        )
        if absent is not None:
            raise OnwardError(
                f"column {name!r} has names of {kind.value} files, but there is no {str(folder / absent)!r}"
            )
        return Column(name, kind, array, folder)
    return Column(name, Kind.TEXT, array)


_SUFFIXES = {
    Kind.IMAGE: (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm"),
    Kind.AUDIO: (".wav",),
}


def file_kind(name: str) -> Kind | None:
    """What a file has, by its name."""
    suffix = Path(name).suffix.lower()
    return next((kind for kind, known in _SUFFIXES.items() if suffix in known), None)


def _is_number(cell: str) -> bool:
    try:
        float(cell.replace(",", "."))
    except ValueError:
        return False
    return True


def _is_name(cell: str) -> bool:
    return bool(cell) and not _is_number(cell)

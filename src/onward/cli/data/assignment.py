"""Which columns belong to which input of the model: what the user says, then names, then types and shapes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from onward.cli.data.axes import arrange
from onward.cli.data.specification import FORMS, Specification, parse
from onward.cli.data.table import Column, Kind, Table
from onward.cli.model import shown
from onward.errors import OnwardError
from onward.graph.naming import quoted
from onward.trainer.field import Field

_LABELS = ("label", "labels", "target", "targets", "y", "class", "classes", "category", "outcome")
# Columns that number rows.
_INDEX = re.compile(r"(unnamed(: ?\d+)?|index|id|row(_?id)?|)", re.IGNORECASE)
# What language models take besides tokens.
FILLED = {
    "attention_mask": Specification(constant=1),
    "token_type_ids": Specification(constant=0),
    "position_ids": Specification(),
    "positions": Specification(),
}

Assigned = dict[str, Specification]


def usual_label(table: Table, fields: Sequence[Field]) -> str | None:
    """The column that is called as labels usually are."""
    taken = {plain(field.name) for field in fields}
    by_name = {plain(name): name for name in table.columns}
    return next((by_name[name] for name in _LABELS if name in by_name and name not in taken), None)


def assign(
    table: Table, fields: Sequence[Field], given: Mapping[str, str], labels: Sequence[str]
) -> tuple[Assigned, list[str]]:
    """What each input gets, and what to tell the user about it."""
    chosen = {name: parse(text, table) for name, text in given.items()}
    notes: list[str] = []
    used = {*labels, *(column for spec in chosen.values() for column in spec.columns)}
    free = [column for name, column in table.columns.items() if name not in used]
    open_ = [field for field in fields if field.name not in chosen]
    for field in list(open_):
        column = next((column for column in free if plain(column.name) == plain(field.name)), None)
        if column is not None and fits(field, [column]):
            _give(chosen, field, [column], open_, free)
    for kind in (Kind.IMAGE, Kind.AUDIO, Kind.ARRAY):
        _by_kind(kind, chosen, open_, free)
    _by_count(table, chosen, open_, free, notes)
    for field in list(open_):
        if plain(field.name) in FILLED or not field.has_rows:
            filled = FILLED.get(plain(field.name))
            if filled is not None:
                chosen[field.name] = filled
                open_.remove(field)
                notes.append(f"input {field.name!r} gets {_said(filled)} everywhere")
    if open_:
        raise _unfed(open_[0], free, table)
    left = [column.name for column in free]
    if left and any(spec.columns for spec in chosen.values()):
        notes.append(f"nothing takes {quoted(left)}")
    return {field.name: chosen[field.name] for field in fields}, notes


def fits(field: Field, columns: Sequence[Column]) -> bool:
    """Whether an input can be fed these columns."""
    first = columns[0]
    if first.kind in (Kind.IMAGE, Kind.AUDIO):
        ranks = (3, 4) if first.kind is Kind.IMAGE else (2, 3, 4)
        return len(columns) == 1 and (field.shape is None or len(field.shape) in ranks) and not _is_text(field)
    if any((column.kind is Kind.TEXT) != _is_text(field) for column in columns):
        return False
    return arrange(shape_of(columns), field.shape) is not None


def shape_of(columns: Sequence[Column]) -> tuple[int, ...]:
    """The shape of columns beside each other."""
    if len(columns) == 1:
        return columns[0].values.shape
    return (len(columns[0]), sum(math.prod(column.values.shape[1:]) for column in columns))


def _give(chosen: Assigned, field: Field, columns: Iterable[Column], open_: list[Field], free: list[Column]) -> None:
    taken = list(columns)
    chosen[field.name] = Specification(tuple(column.name for column in taken))
    open_.remove(field)
    for column in taken:
        free.remove(column)


def _by_kind(kind: Kind, chosen: Assigned, open_: list[Field], free: list[Column]) -> None:
    """Columns of one kind go to the inputs that they fit, in their order, as long as there is no other choice."""
    for field in list(open_):
        fitting = [column for column in free if column.kind is kind and fits(field, [column]) and _suits(field, column)]
        rivals = [other for other in open_ if any(fits(other, [c]) and _suits(other, c) for c in fitting)]
        if len(fitting) == 1 or (fitting and len(fitting) == len(rivals)):
            _give(chosen, field, fitting[:1], open_, free)


def _suits(field: Field, column: Column) -> bool:
    """Whether the type of an array is one that the input is meant for."""
    assert field.dtype is not None
    if column.kind is not Kind.ARRAY:
        return True
    return field.dtype.kind not in "iub" or column.values.dtype.kind in "iub"


def _by_count(table: Table, chosen: Assigned, open_: list[Field], free: list[Column], notes: list[str]) -> None:
    """Columns of numbers go to the inputs by how many each takes; those of text likewise."""
    for kind in (Kind.NUMBER, Kind.TEXT):
        fields = [field for field in open_ if _is_text(field) == (kind is Kind.TEXT) and field.has_rows]
        columns = [column for column in free if column.kind is kind]
        widths = [_width(field) for field in fields]
        if not fields or not columns:
            continue
        if len(fields) == 1 and widths[0] is None:
            widths = [len(columns)]
        if None in widths:
            continue
        total = sum(width for width in widths if width is not None)
        if len(columns) > total:
            numbering = [column for column in columns if _INDEX.fullmatch(column.name) and _counts(column)]
            if len(columns) - len(numbering) == total:
                columns = [column for column in columns if column not in numbering]
                notes.append(f"{quoted(column.name for column in numbering)} numbers the rows, and is left out")
        if len(columns) != total:
            continue
        for field, width in zip(fields, widths, strict=True):
            taken, columns = columns[:width], columns[width:]
            _give(chosen, field, taken, open_, free)


def _width(field: Field) -> int | None:
    """How many numbers an input takes in each row."""
    if field.shape is None:
        return None
    inner = field.shape[1:]
    return (
        math.prod(size for size in inner if isinstance(size, int)) if all(isinstance(s, int) for s in inner) else None
    )


def _counts(column: Column) -> bool:
    """Whether a column counts rows: whole numbers, none of them twice."""
    return column.is_integer and len(np.unique(column.values)) == len(column)


def _is_text(field: Field) -> bool:
    return field.dtype == np.dtype(object)


def plain(name: str) -> str:
    """A name without what converters change in it."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _said(spec: Specification) -> str:
    return f"{spec.constant:g}" if spec.constant is not None else "the positions 0, 1, 2 ..."


def _unfed(field: Field, free: Sequence[Column], table: Table) -> OnwardError:
    what = "text" if _is_text(field) else str(field.dtype)
    has = f"input {field.name!r} of the model takes {what} {shown(field.shape)}"
    numeric = [column for column in free if column.kind is (Kind.TEXT if _is_text(field) else Kind.NUMBER)]
    others = [column for column in free if column not in numeric]
    width = _width(field)
    if len(numeric) > 1 and width is not None:
        has += f", {width} in each row, but {len(numeric)} columns are left for it: {quoted(c.name for c in numeric)}"
    elif free:
        has += f", which fits none of {', '.join(f'{c.name!r} ({c.type_name})' for c in free[:8])}"
    else:
        has += f", but nothing of {str(table.path)!r} is left for it"
    texts = [column.name for column in others if column.kind is Kind.TEXT]
    if texts and not _is_text(field):
        reads = field.dtype is not None and field.dtype.kind in "iu"
        how = "--tokenizer tokenizer.json makes tokens of it" if reads else "write it as numbers first"
        has += f" ({quoted(texts)} is text: {how})"
    return OnwardError(f"{has}; say what it gets: --input {FORMS.replace('NAME', field.name)}")

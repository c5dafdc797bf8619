"""Read what `--data` names: npz, npy, csv, tsv, parquet, or a folder of images or sounds."""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onward.cli.data.delimited import file_kind, read_delimited, text_column
from onward.cli.data.table import Column, Kind, Table
from onward.cli.files import existing
from onward.errors import OnwardError

FORMS = "npz, npy, csv, tsv or parquet, or a folder of images or wav files with a folder for each class"
_VALIDATION = ("val", "valid", "validation", "test", "testing")
LABEL = "label"


def read(path: Path) -> Table:
    """The data of a file or a folder."""
    existing(path, "data")
    if path.is_dir():
        return _folder(path)
    suffix = path.suffix.lower()
    if suffix in (".npz", ".npy"):
        return _arrays(path)
    if suffix in (".csv", ".tsv", ".txt", ".data"):
        return read_delimited(path)
    if suffix in (".parquet", ".pq"):
        return _parquet(path)
    raise OnwardError(f"{str(path)!r} is data of an unknown kind; give {FORMS}")


# Arrays ---------------------------------------------------------------------------------------------------------------


def _arrays(path: Path) -> Table:
    try:
        # Objects would be unpickled, which runs what is in them.
        loaded = np.load(path, allow_pickle=False, mmap_mode="r" if path.suffix == ".npy" else None)
        arrays = (
            {path.stem: loaded} if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded.files}
        )
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        advice = "; save arrays of numbers or texts, without objects" if "pickle" in str(error) else ""
        raise OnwardError(f"{str(path)!r} cannot be read: {error}{advice}") from error
    kept = {name: array for name, array in arrays.items() if array.ndim}
    left = [name for name in arrays if name not in kept]
    rows = Counter(len(array) for array in kept.values()).most_common(1)
    if rows and rows[0][1] > 1:  # vocabularies, names of classes and the like are not data
        left += [name for name, array in kept.items() if len(array) != rows[0][0]]
        kept = {name: array for name, array in kept.items() if len(array) == rows[0][0]}
    notes = [f"left out, since they do not have a row for each sample: {', '.join(left)}"] if left else []
    return Table({name: array_column(name, array, path) for name, array in kept.items()}, "arrays", path, notes)


def array_column(name: str, array: np.ndarray[Any, Any], path: Path) -> Column:
    """An array as a column."""
    if array.dtype.kind in "US":
        if array.ndim > 1 and array.shape[1:] != (1,):
            raise OnwardError(f"{name!r} of {str(path)!r} is an array of texts with {array.ndim} axes; give one axis")
        return text_column(name, [str(text) for text in array.astype(str).reshape(-1)], path.parent)
    if array.dtype.kind not in "iubf":
        raise OnwardError(f"{name!r} of {str(path)!r} is {array.dtype}; give numbers or texts")
    return Column(name, Kind.NUMBER if array.ndim == 1 else Kind.ARRAY, array)


# Parquet --------------------------------------------------------------------------------------------------------------


def _parquet(path: Path) -> Table:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import read_table
    except ImportError as error:
        raise OnwardError("reading parquet files needs the package pyarrow: pip install pyarrow") from error
    try:
        found = read_table(path)
    except (ArrowException, OSError) as error:
        raise OnwardError(f"{str(path)!r} cannot be read: {error}") from error
    columns = {name: _parquet_column(name, found.column(name), path) for name in found.column_names}
    return Table(columns, "table", path)


def _parquet_column(name: str, column: Any, path: Path) -> Column:
    values = column.to_pylist()
    known = [value for value in values if value is not None]
    if known and isinstance(known[0], (list, tuple)):
        try:
            return array_column(name, np.array(values), path)
        except ValueError as error:
            raise OnwardError(f"column {name!r} of {str(path)!r} has lists of different lengths") from error
    if known and isinstance(known[0], (bool, int, float)):
        missing = len(known) < len(values)
        return Column(
            name, Kind.NUMBER, np.array([np.nan if v is None else v for v in values]) if missing else np.array(values)
        )
    return text_column(name, [None if value is None else str(value) for value in values], path.parent)


# Folders --------------------------------------------------------------------------------------------------------------


def _folder(path: Path) -> Table:
    """Images or sounds, with a folder for each class; or several parts of them, the second for validation."""
    inner = {entry.name: entry for entry in sorted(path.iterdir()) if entry.is_dir()}
    parts = {name.lower(): name for name in inner}
    if "train" in parts and any(name in parts for name in _VALIDATION):
        second = next(parts[name] for name in _VALIDATION if name in parts)
        first = _classes(inner[parts["train"]])
        note = f"the folder has a part {second!r}, which is used for validation (--validation names another)"
        return Table(first.columns, first.what, path, [*first.notes, note], _classes(inner[second]))
    return _classes(path)


def _classes(path: Path) -> Table:
    files, labels, skipped = [], [], []
    for file in sorted(entry for entry in path.rglob("*") if entry.is_file()):
        name = file.relative_to(path)
        if any(part.startswith((".", "_")) for part in name.parts):
            skipped.append(name.parts[0])
        elif file_kind(file.name) is not None:
            files.append(name.as_posix())
            labels.append(name.parent.as_posix())
    kinds = Counter(file_kind(name) for name in files)
    if not files:
        raise OnwardError(f"{str(path)!r} has no images and no wav files; give {FORMS}")
    kind = kinds.most_common(1)[0][0]
    assert kind is not None
    chosen = [(name, label) for name, label in zip(files, labels, strict=True) if file_kind(name) is kind]
    notes = []
    if len(chosen) < len(files):
        notes.append(f"{len(files) - len(chosen)} files are no {kind.value} as most are, and left out")
    if skipped:
        notes.append(f"left out, since their names begin with '_' or '.': {', '.join(sorted(set(skipped)))}")
    columns = {kind.value: _files(kind, [name for name, _ in chosen], path)}
    if any(label != "." for _, label in chosen):
        columns[LABEL] = text_column(LABEL, [label for _, label in chosen], path)
    return Table(columns, f"folder of {'images' if kind is Kind.IMAGE else 'sounds'}", path, notes)


def _files(kind: Kind, names: Sequence[str], folder: Path) -> Column:
    values = np.empty(len(names), object)
    values[:] = list(names)
    return Column(kind.value, kind, values, folder)


def class_counts(labels: Mapping[str, int] | Sequence[str]) -> str:
    """How many rows each class has, for people."""
    counts = Counter(labels)
    shown = [f"{name} ({count})" for name, count in counts.most_common(10)]
    return ", ".join(shown) + (f" and {len(counts) - 10} more" if len(counts) > 10 else "")

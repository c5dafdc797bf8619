"""Texts as tokens, for models that take these: by a tokenizer.json, or byte by byte."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from onward.cli.data.assignment import FILLED, plain, usual_label
from onward.cli.data.specification import Specification
from onward.cli.data.table import Column, Kind, Table
from onward.cli.files import existing
from onward.cli.model import ModelView
from onward.cli.recipe import BYTES, Recipe
from onward.errors import OnwardError
from onward.trainer.field import Field

Array = np.ndarray[Any, Any]

MASK, TOKENS = "attention_mask", "tokens"
_LONGEST = 512  # tokens of a row, unless the model or --window say otherwise


class Tokenizer(Protocol):
    """What makes tokens of texts."""

    padding: int

    def encode(self, text: str, *, special: bool) -> list[int]: ...


class _Bytes:
    padding = 0

    def encode(self, text: str, *, special: bool) -> list[int]:
        return list(text.encode())


class _Trained:
    """A file as Hugging Face's libraries write it."""

    def __init__(self, path: Path) -> None:
        try:
            from tokenizers import Tokenizer as Library
        except ImportError as error:
            raise OnwardError(
                "reading a tokenizer.json needs the package tokenizers: pip install tokenizers"
            ) from error
        try:
            self._inner = Library.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise OnwardError(f"{str(path)!r} is no tokenizer.json: {error}") from error
        self._inner.no_padding()
        self._inner.no_truncation()
        known = (self._inner.token_to_id(name) for name in ("[PAD]", "<pad>", "<|endoftext|>", "</s>"))
        self.padding = next((number for number in known if number is not None), 0)

    def encode(self, text: str, *, special: bool) -> list[int]:
        return list(self._inner.encode(text, add_special_tokens=special).ids)


def tokenizer_of(name: str) -> Tokenizer:
    """The tokenizer that `--tokenizer` names: a file, or `bytes`."""
    return _Bytes() if name == BYTES else _Trained(existing(Path(name), "tokenizer"))


def reader_of(view: ModelView) -> Field | None:
    """The input that takes tokens."""
    for field in view.inputs:
        is_whole = field.dtype is not None and field.dtype.kind in "iu"
        if is_whole and field.shape is not None and len(field.shape) == 2 and plain(field.name) not in FILLED:
            return field
    return None


def read_text(path: Path, tokenizer: str | None, view: ModelView) -> Table | None:
    """One long row of the tokens of a text file; None if it is no such file."""
    if path.suffix.lower() not in (".txt", ".text", ".md") or not path.is_file() or reader_of(view) is None:
        return None
    if tokenizer is None:
        raise OnwardError(
            f"{str(path)!r} is text, but the model takes tokens; say what makes these: --tokenizer tokenizer.json, or "
            "--tokenizer bytes, if each byte is a token to the model"
        )
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise OnwardError(f"{str(path)!r} is no text in UTF-8: {error}") from error
    tokens = np.array(tokenizer_of(tokenizer).encode(text, special=False), np.int64)
    return Table({TOKENS: Column(TOKENS, Kind.NUMBER, tokens)}, "text", path)


def encoded(table: Table, recipe: Recipe, view: ModelView, notes: list[str]) -> Table:
    """The table with tokens in place of the texts that the model is to read, and a mask of where there are some."""
    reader = reader_of(view)
    if recipe.data.tokenizer is None or reader is None:
        return table
    texts = _texts(table, recipe, view, reader)
    if texts is None:
        return table
    tokenizer = tokenizer_of(recipe.data.tokenizer)
    rows = [tokenizer.encode(str(text or ""), special=True) for text in texts.values]
    length = _length(rows, reader, recipe)
    cut = sum(len(row) > length for row in rows)
    if cut:
        notes.append(f"{cut} of {len(rows)} texts have more than {length} tokens, and are cut (--window)")
    recipe.data.window = length
    tokens, mask = _padded(rows, length, tokenizer.padding)
    recipe.data.inputs = {reader.name: str(Specification((texts.name,))), **recipe.data.inputs}
    columns = {**table.columns, texts.name: Column(texts.name, Kind.ARRAY, tokens)}
    if not mask.all() or any(plain(field.name) == MASK for field in view.inputs):
        columns[MASK] = Column(MASK, Kind.ARRAY, mask)
    return Table(columns, table.what, table.path, table.notes)


def _texts(table: Table, recipe: Recipe, view: ModelView, reader: Field) -> Column | None:
    """The column that is read: the one that was named, or the longest texts besides the label."""
    given = recipe.data.inputs.get(reader.name, "").removeprefix("cols:")
    if given in table.columns:
        return table.columns[given] if table.columns[given].kind is Kind.TEXT else None
    labels = {*recipe.data.label, usual_label(table, view.inputs)}
    found = [column for column in table.columns.values() if column.kind is Kind.TEXT and column.name not in labels]
    return max(found, key=lambda column: sum(len(str(text)) for text in column.values), default=None)


def _length(rows: Sequence[Sequence[int]], reader: Field, recipe: Recipe) -> int:
    fixed = reader.shape[1] if reader.shape is not None else None
    if isinstance(fixed, int):
        return fixed
    return recipe.data.window or min(_LONGEST, max(1, *(len(row) for row in rows)))


def _padded(rows: Sequence[Sequence[int]], length: int, padding: int) -> tuple[Array, Array]:
    tokens = np.full((len(rows), length), padding, np.int64)
    mask = np.zeros((len(rows), length), np.int64)
    for place, row in enumerate(rows):
        tokens[place, : len(row)] = row[:length]
        mask[place, : len(row)] = 1
    return tokens, mask

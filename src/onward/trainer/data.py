"""Data of any kind as batches for a model: `source(...)` makes a `Source`, whose `epoch(number)` yields `Batch`es.

Data that has rows (arrays, tables, data sets) is cut into batches, the last of which may be short, in an order that
follows from the seed and the number of the epoch. What yields batches itself (iterables, generators, functions that
return them, a DataLoader of torch) keeps its own order and sizes.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from onward.errors import OnwardError
from onward.trainer.assignment import SAMPLE_WEIGHT, Fields, Named, by_name, by_position, from_frame, from_parts
from onward.trainer.column import as_array, is_arraylike, is_frame
from onward.trainer.field import Field
from onward.trainer.prefetch import Immediate
from onward.trainer.table import ColumnTable, DatasetTable, PartOfTable, SampleTable, Table, from_dataset, is_computed

__all__ = ["SAMPLE_WEIGHT", "Batch", "Field", "Source", "divided", "source"]

Order = Callable[[int], np.ndarray]
# Batches of so many bytes are copied in less time than it takes to hand them from thread to thread.
_IMMEDIATE = 2**19


class Batch(NamedTuple):
    """What a step is fed."""

    feeds: dict[str, np.ndarray]
    rows: int
    weight: np.ndarray | None = None  # of each row; among the feeds too


class Source(Protocol):
    """Batches of one data set, epoch after epoch."""

    rows: int | None  # None if only going through them tells
    steps: int | None
    once: bool  # whether there is only one epoch in it: a generator

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, from 0 on; without the first `start` ones."""
        ...


def source(
    data: Any,
    targets: Any = None,
    *,
    inputs: Sequence[Field],
    batch_size: int = 32,
    shuffle: bool | Order = True,
    seed: int = 0,
    sample_weight: Any = None,
    needs_targets: bool = True,
) -> Source:
    """Batches of `data` for a model.

    Args:
        data: arrays or tensors (one, a tuple, a dict by the names of `inputs`), a DataFrame, a data set of Hugging Face
            or torch, or batches: an iterable, a generator, a function that returns one, a DataLoader.
        targets: arrays for the targets of the loss, where they are not in `data`; or the names that they have there.
        inputs: what the model and its loss take.
        batch_size: rows of a batch, where `data` does not come in batches.
        shuffle: whether rows come in another order in each epoch; or a function from the number of the epoch to the
            order of the rows.
        seed: what the order follows from, together with the number of the epoch.
        sample_weight: the weight of each row, where it is not in `data`; it needs an input `sample_weight`.
        needs_targets: False leaves targets out, also if `data` has them.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
        raise OnwardError(f"`batch_size` is a number of rows, at least 1, not {batch_size!r}")
    fields = Fields(inputs, needs_targets=needs_targets)
    table = _table(data, targets, sample_weight, fields)
    if table is not None:
        return _Rows(table, fields, int(batch_size), shuffle, seed)
    if _is_dataset(data):
        return _Stream(_DatasetBatches(data, batch_size), fields, lambda v: from_dataset(v, fields, targets, None))
    given = [name for name, value in (("targets", targets), ("sample_weight", sample_weight)) if value is not None]
    if given:
        raise OnwardError(
            f"`{given[0]}` belongs to arrays, but the data is {type(data).__name__}, which yields batches: let it "
            "yield (inputs, targets) or (inputs, targets, sample_weight)"
        )
    return _Stream(data, fields, lambda value: _named(value, fields))


def _table(data: Any, targets: Any, weight: Any, fields: Fields) -> Table | None:
    """`data` as something whose rows can be taken; None if it comes in batches."""
    if _is_dataset(data):
        return DatasetTable(data, fields, targets, weight) if hasattr(data, "__len__") else None
    if _is_samples(data):
        return SampleTable(data, fields)
    if is_frame(data):
        return ColumnTable(from_frame(data, fields, targets, weight), fields)
    if isinstance(data, Mapping):
        return ColumnTable(by_name(data, fields, targets, weight), fields)
    if targets is not None and not callable(data) and not isinstance(data, Iterator):
        return ColumnTable(from_parts(data, targets, weight, fields), fields)
    if isinstance(data, tuple):
        named = by_position(data, fields)
        return ColumnTable(named if weight is None else {**named, SAMPLE_WEIGHT: weight}, fields)
    if is_arraylike(data) or (isinstance(data, list) and not _holds_batches(data, fields)):
        return ColumnTable(from_parts(data, None, weight, fields), fields)
    return None


def _named(value: Any, fields: Fields) -> Named:
    """The values of one batch that the user's iteration yields."""
    if isinstance(value, Mapping):
        return by_name(value, fields)
    if is_frame(value):
        return from_frame(value, fields)
    if isinstance(value, tuple) or (isinstance(value, list) and any(map(_is_value, value))):
        return by_position(value, fields)
    return by_position([value], fields)


def _holds_batches(data: list[Any], fields: Fields) -> bool:
    """Whether a list holds batches; else it is rows of numbers."""
    if not data:
        return False
    first, shape = data[0], fields.inputs[0].shape if fields.inputs else None
    if is_arraylike(first) and len(fields.needed) == 1 and shape is not None:
        return len(first.shape) == len(shape)
    return isinstance(first, Mapping) or (isinstance(first, (tuple, list)) and any(map(_is_value, first)))


def _is_value(item: Any) -> bool:
    return is_arraylike(item) or isinstance(item, (Mapping, tuple)) or is_frame(item)


def _is_dataset(data: Any) -> bool:
    return hasattr(data, "column_names") and hasattr(data, "with_format")


def _is_samples(data: Any) -> bool:
    """Whether this is a data set of torch whose samples have numbers."""
    of_torch = any(kind.__module__.startswith("torch.utils.data") for kind in type(data).__mro__)
    return of_torch and hasattr(data, "__getitem__") and hasattr(data, "__len__") and not hasattr(data, "__iter__")


def divided(whole: Source, part: float, seed: int) -> tuple[Source, Source]:
    """Two sources of the rows of one: the second has the given part of them, drawn by the seed, in their order."""
    if not isinstance(whole, _Rows):
        raise OnwardError(
            f"`validation` is a part of the rows, {part}, but the data yields batches, of which nobody knows the rows; "
            "give other data for validation"
        )
    return whole.divided(part, seed)


class _Rows:
    """Batches cut from rows."""

    once = False

    def __init__(self, table: Table, fields: Fields, batch_size: int, shuffle: bool | Order, seed: int) -> None:
        self._table, self._fields, self._size = table, fields, batch_size
        self._shuffle, self._seed = shuffle, seed
        self.rows: int | None = table.rows
        self.steps: int | None = math.ceil(table.rows / batch_size)
        self._check_fixed_batch()

    def _check_fixed_batch(self) -> None:
        """A model of a fixed batch takes no other."""
        fixed = next((field for field in self._fields.needed if field.batch is not None), None)
        if fixed is None:
            return
        size, rows = fixed.batch, self._table.rows
        assert size is not None
        if rows % size or (self._size != size and rows > size) or (self._size < size):
            raise OnwardError(
                f"{fixed} takes batches of exactly {size} rows, but {rows} rows come in batches of {self._size}, and "
                f"the last one of {rows % self._size or self._size}. Use batch_size={size} and a number of rows that "
                f"{size} divides, or export the model with a batch axis that may change"
            )

    def order(self, epoch: int) -> np.ndarray | None:
        """The rows in the order of an epoch; None is as they are."""
        if callable(self._shuffle):
            order = np.asarray(self._shuffle(epoch))
            if order.ndim != 1 or order.dtype.kind not in "iu":
                raise OnwardError(f"`shuffle` returned {order!r:.80}, which is no order of rows")
            return order
        if not self._shuffle:
            return None
        return np.random.default_rng([self._seed % 2**64, epoch]).permutation(self._table.rows)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        batches = self._batches(number, start)
        size = self._table.row_size
        return batches if size is None or size * self._size > _IMMEDIATE else Immediate(batches)

    def _batches(self, number: int, start: int) -> Generator[Batch, None, None]:
        order = self.order(number)
        count = self._table.rows if order is None else len(order)
        for first in range(start * self._size, count, self._size):
            end = min(first + self._size, count)
            rows = slice(first, end) if order is None else order[first:end]
            yield _batch(self._table.take(rows), self._fields)

    def row_numbers(self, epoch: int, first: int, count: int) -> list[int]:
        """Which rows of the data are in `count` batches of an epoch, from the batch `first` on."""
        order = self.order(epoch)
        numbers = np.arange(self._table.rows) if order is None else order
        numbers = numbers[first * self._size : (first + count) * self._size]
        if isinstance(self._table, PartOfTable):
            numbers = self._table.numbers[numbers]
        return [int(number) for number in numbers]

    def divided(self, part: float, seed: int) -> tuple[_Rows, _Rows]:
        if callable(self._shuffle):
            raise OnwardError("`shuffle` is an order of all rows, but a part of them is kept for validation")
        rows = self._table.rows
        kept = min(max(1, round(part * rows)), rows - 1)
        if kept < 1:
            raise OnwardError("there is one row only, of which no part can be kept for validation")
        # Another stream of numbers than those of the epochs.
        order = np.random.default_rng([seed % 2**64, 0, 1]).permutation(rows)
        sides = ((order[kept:], self._shuffle), (order[:kept], False))
        first, second = (
            _Rows(PartOfTable(self._table, np.sort(numbers)), self._fields, self._size, shuffle, self._seed)
            for numbers, shuffle in sides
        )
        return first, second


class _Stream:
    """Batches that the user's own iteration yields."""

    rows: int | None = None

    def __init__(self, batches: Any, fields: Fields, name: Callable[[Any], Named]) -> None:
        if not callable(batches) and not hasattr(batches, "__iter__") and not hasattr(batches, "__getitem__"):
            raise OnwardError(
                f"the data is {type(batches).__name__}, which is neither arrays, nor a table, nor something that "
                "yields batches"
            )
        self._batches, self._fields, self._name = batches, fields, name
        self._is_function = callable(batches) and not hasattr(batches, "__iter__")
        self.once = isinstance(batches, Iterator)
        self._begun: int | None = None
        self.steps: int | None = _length(batches)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        iterator = iter(self._open(number))
        count = 0
        try:
            for count, value in enumerate(iterator, 1):
                if count > start:
                    yield self._made(value, count)
            if count == 0:
                raise OnwardError("there is no data: it yields no batches")
        finally:
            if isinstance(iterator, Generator):
                iterator.close()

    def _open(self, number: int) -> Iterable[Any]:
        """What yields the batches of an epoch."""
        if self.once:
            if self._begun is not None:
                raise OnwardError(
                    f"a generator yields its batches once, and epoch {self._begun} has had them; give a function that "
                    f"returns a new one for each epoch, or a list"
                )
            self._begun = number
        if self._is_function:
            parameters = inspect.signature(self._batches).parameters.values()
            required = [
                p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
            ]
            made = self._batches(number) if required else self._batches()
            if not hasattr(made, "__iter__"):
                raise OnwardError(f"the function that is the data returned {type(made).__name__}, not batches")
            return made
        for owner in (
            self._batches,
            getattr(self._batches, "sampler", None),
            getattr(self._batches, "batch_sampler", None),
        ):
            if callable(getattr(owner, "set_epoch", None)):
                owner.set_epoch(number)  # type: ignore[union-attr]
        return self._batches

    def _made(self, value: Any, count: int) -> Batch:
        try:
            return _batch(self._name(value), self._fields)
        except OnwardError as error:
            raise type(error)(f"batch {count}: {error}") from error


class _DatasetBatches:
    """Batches of a data set of Hugging Face that is read from its beginning to its end."""

    def __init__(self, dataset: Any, batch_size: int) -> None:
        self._dataset = dataset if is_computed(dataset) else dataset.with_format("numpy")
        self._size = batch_size

    def set_epoch(self, number: int) -> None:
        self._dataset.set_epoch(number)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._dataset.iter(batch_size=self._size))


def _length(batches: Any) -> int | None:
    try:
        return len(batches)
    except (TypeError, NotImplementedError):  # no length, or one that is not known
        return None


def _batch(named: Named, fields: Fields) -> Batch:
    """Values as the model takes them."""
    feeds = {field.name: field.fit(as_array(named[field.name], str(field))) for field in fields.needed}
    first = next((field for field in fields.needed if field.has_rows), None)
    rows = len(feeds[first.name]) if first is not None and feeds[first.name].ndim else 1
    if rows == 0:
        raise OnwardError("it has no rows")
    for field in fields.needed:
        _check_rows(field, feeds[field.name], rows, first)
    weight = _weight(named.get(SAMPLE_WEIGHT), rows, fields)
    if weight is not None and fields.weight is not None:
        feeds[fields.weight.name] = weight
    return Batch(feeds, rows, weight)


def _check_rows(field: Field, array: np.ndarray, rows: int, first: Field | None) -> None:
    """See that all fields whose first axis is that of the rows have as many; the graph checks the others."""
    if field.batch is not None and len(array) != field.batch:
        raise OnwardError(f"{field} takes batches of exactly {field.batch} rows, not {len(array)}")
    if first is None or not field.shape or not first.shape or not isinstance(first.shape[0], str):
        return
    if field.shape[0] == first.shape[0] and len(array) != rows:
        raise OnwardError(f"{first} has {rows} rows, but {field} has {len(array)}")


def _weight(given: Any, rows: int, fields: Fields) -> np.ndarray | None:
    if not fields.needs_targets:
        return None
    if fields.weight is None:
        if given is not None:
            raise OnwardError(
                "weights of rows are given, but the loss takes none; make the Trainer with sample_weight=True"
            )
        return None
    if given is None:
        return np.ones(rows, fields.weight.dtype or np.float32)
    weight = fields.weight.fit(as_array(given, str(fields.weight)))
    if weight.shape != (rows,):
        raise OnwardError(f"`sample_weight` is a number for each of {rows} rows, but has shape {list(weight.shape)}")
    return weight

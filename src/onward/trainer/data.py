"""Data of any kind as batches for a model: `source(...)` makes a `Source`, whose `epoch(number)` yields `Batch`es.

Data that has rows (arrays, tables, data sets) is cut into batches, the last of which may be short, in an order that
follows from the seed and the number of the epoch. What yields batches itself (iterables, generators, functions that
return them, a DataLoader of torch) keeps its own order and sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from onward.errors import OnwardError
from onward.graph.naming import quoted
from onward.trainer.assignment import SAMPLE_WEIGHT, Fields, Named, by_name, by_position, from_frame, from_parts
from onward.trainer.batch import NOTHING, Batch, make_batch
from onward.trainer.column import is_arraylike, is_frame
from onward.trainer.field import Field
from onward.trainer.part import WHOLE, Part
from onward.trainer.prefetch import Immediate
from onward.trainer.stream import DatasetBatches, Stream
from onward.trainer.table import ColumnTable, DatasetTable, PartOfTable, SampleTable, Table, from_dataset

__all__ = ["SAMPLE_WEIGHT", "Batch", "Field", "Source", "divided", "source"]

Order = Callable[[int], np.ndarray]
# Batches of so many bytes are copied in less time than it takes to hand them from thread to thread.
_IMMEDIATE = 2**19
_SAMPLE = 8, 16  # rows, and elements of each, that tell data from other data


class Source(Protocol):
    """Batches of one data set, epoch after epoch."""

    rows: int | None  # None if only going through them tells
    steps: int | None
    once: bool  # whether there is only one epoch in it: a generator
    dealt: bool  # whether parts are whole batches, dealt out to several processes

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, from 0 on; without the first `start` ones."""
        ...

    def order(self, epoch: int) -> np.ndarray | None:
        """The rows in the order of an epoch; None is as they come."""
        ...

    def sample(self) -> dict[str, np.ndarray]:
        """Some numbers of some rows, to tell data from other data; nothing where rows cannot be taken twice."""
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
    part: Part = WHOLE,
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
        part: which part of it is taken: rows of each batch, or whole batches in turn where `data` comes in batches.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
        raise OnwardError(f"`batch_size` is a number of rows, at least 1, not {batch_size!r}")
    fields = Fields(inputs, needs_targets=needs_targets)
    table = _table(data, targets, sample_weight, fields)
    if table is not None:
        return _Rows(table, fields, int(batch_size), shuffle, seed, part)
    if _is_dataset(data):
        batches = DatasetBatches(data, batch_size, part)
        return Stream(batches, fields, lambda v: from_dataset(v, fields, targets, None))
    given = [name for name, value in (("targets", targets), ("sample_weight", sample_weight)) if value is not None]
    if given:
        raise OnwardError(
            f"`{given[0]}` belongs to arrays, but the data is {type(data).__name__}, which yields batches: let it "
            "yield (inputs, targets) or (inputs, targets, sample_weight)"
        )
    return Stream(data, fields, lambda value: _named(value, fields), part)


def _table(data: Any, targets: Any, weight: Any, fields: Fields) -> Table | None:
    """`data` as something whose rows can be taken; None if it comes in batches."""
    if isinstance(data, (str, bytes)):
        raise OnwardError(f"the data is the text {data!r:.50}; read the file, and give what is in it")
    if isinstance(data, Mapping) and any(map(_is_dataset, data.values())):
        raise OnwardError(
            f"the data has the parts {quoted(map(str, data))}; give one of them: data[{next(iter(data))!r}]"
        )
    if hasattr(data, "to_pandas") and not is_frame(data) and not _is_dataset(data):
        data = data.to_pandas()  # tables of pyarrow, polars and others
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

    once = dealt = False

    def __init__(
        self, table: Table, fields: Fields, batch_size: int, shuffle: bool | Order, seed: int, part: Part = WHOLE
    ) -> None:
        self._table, self._fields, self._size = table, fields, batch_size
        self._shuffle, self._seed, self._part = shuffle, seed, part
        self._given: tuple[int, np.ndarray] | None = (
            None  # the last order that the user's function returned, and of what
        )
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
        size *= self._part.size
        if rows % size or (self._size != size and rows > size) or (self._size < size):
            together = f" in each of {self._part.size} processes" if self._part.size > 1 else ""
            raise OnwardError(
                f"{fixed} takes batches of exactly {fixed.batch} rows{together}, but {rows} rows come in batches of "
                f"{self._size}, and the last one of {rows % self._size or self._size}. Use batch_size={size} and a "
                f"number of rows that {size} divides, or export the model with a batch axis that may change"
            )

    def order(self, epoch: int) -> np.ndarray | None:
        if callable(self._shuffle):
            if self._given is None or self._given[0] != epoch:  # it may draw, and return another one each time
                self._given = epoch, _checked_order(self._shuffle(epoch))
            return self._given[1]
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
            start, end = self._part.bounds(first, min(first + self._size, count))
            rows = slice(start, end) if order is None else order[start:end]
            yield make_batch(self._table.take(rows), self._fields) if end > start else NOTHING

    def sample(self) -> dict[str, np.ndarray]:
        if not self._table.is_fixed:
            return {}
        numbers = _spread(self._table.rows, _SAMPLE[0])
        taken = {name: np.asarray(value) for name, value in self._table.take(numbers).items()}
        rows = {name: x.reshape(len(numbers) if x.shape[:1] == numbers.shape else 1, -1) for name, x in taken.items()}
        return {name: x[:, _spread(x.shape[1], _SAMPLE[1])] for name, x in rows.items()}

    def row_numbers(self, epoch: int, first: int, count: int) -> list[int]:
        """Which rows of the data this part has in `count` batches of an epoch, from the batch `first` on."""
        order = self.order(epoch)
        numbers = np.arange(self._table.rows) if order is None else order
        starts = range(first * self._size, min((first + count) * self._size, len(numbers)), self._size)
        bounds = [self._part.bounds(start, min(start + self._size, len(numbers))) for start in starts]
        numbers = np.concatenate([numbers[:0], *(numbers[start:end] for start, end in bounds)])
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
            _Rows(PartOfTable(self._table, np.sort(numbers)), self._fields, self._size, shuffle, self._seed, self._part)
            for numbers, shuffle in sides
        )
        return first, second


def _checked_order(given: Any) -> np.ndarray:
    order = np.asarray(given)
    if order.ndim != 1 or order.dtype.kind not in "iu":
        raise OnwardError(f"`shuffle` returned {order!r:.80}, which is no order of rows")
    return order


def _spread(length: int, count: int) -> np.ndarray:
    """At most so many of the numbers below `length`, evenly spread."""
    return np.unique(np.linspace(0, max(length - 1, 0), min(length, count)).astype(np.int64))

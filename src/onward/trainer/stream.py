"""Batches that the user's own iteration yields, in its order and sizes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import numpy as np

from onward.errors import OnwardError
from onward.trainer.assignment import Fields, Named
from onward.trainer.batch import NOTHING, Batch, make_batch
from onward.trainer.part import WHOLE, Part
from onward.trainer.table import is_computed


class Stream:
    """Batches that the user's own iteration yields.

    Several processes deal them out: of each round of as many batches, every process takes one. Nobody but the user
    knows which axes of a batch are rows, so none is cut.
    """

    rows: int | None = None

    def __init__(self, batches: Any, fields: Fields, name: Callable[[Any], Named], part: Part = WHOLE) -> None:
        if not callable(batches) and not hasattr(batches, "__iter__") and not hasattr(batches, "__getitem__"):
            raise OnwardError(
                f"the data is {type(batches).__name__}, which is neither arrays, nor a table, nor something that "
                "yields batches"
            )
        self._batches, self._fields, self._name = batches, fields, name
        self._is_function = callable(batches) and not hasattr(batches, "__iter__")
        self.once = isinstance(batches, Iterator)
        self._begun: int | None = None
        self._part, self.dealt = part, part.size > 1
        if self.dealt:
            _require_undivided(batches)
        length = _length(batches)
        self.steps: int | None = None if length is None else -(-length // part.size)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        iterator = iter(self._open(number))
        count, (rank, size) = 0, self._part
        try:
            for count, value in enumerate(iterator, 1):
                if count > start * size and (count - 1) % size == rank:
                    yield self._made(value, count)
            if count == 0:
                raise OnwardError("there is no data: it yields no batches")
            if 0 < count % size <= rank and count > start * size:  # the last round is not complete
                yield NOTHING
        finally:
            if isinstance(iterator, Generator):
                iterator.close()

    def order(self, epoch: int) -> np.ndarray | None:
        return None

    def sample(self) -> dict[str, np.ndarray]:
        return {}

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
            if len(required) > 1:
                raise OnwardError(
                    "the function that is the data takes no argument, or the number of the epoch, not "
                    f"{', '.join(p.name for p in required)}"
                )
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
        if value is NOTHING:
            return NOTHING
        try:
            return make_batch(self._name(value), self._fields)
        except OnwardError as error:
            raise type(error)(f"batch {count}: {error}") from error


class DatasetBatches:
    """Batches of a data set of Hugging Face that is read from its beginning to its end."""

    def __init__(self, dataset: Any, batch_size: int, part: Part = WHOLE) -> None:
        self._dataset = dataset if is_computed(dataset) else dataset.with_format("numpy")
        self._size, self._part = batch_size, part

    def set_epoch(self, number: int) -> None:
        self._dataset.set_epoch(number)

    def __iter__(self) -> Iterator[Any]:
        return map(self._rows, self._dataset.iter(batch_size=self._size))

    def _rows(self, columns: Any) -> Any:
        """The part of a batch that is ours."""
        if self._part == WHOLE:
            return columns
        start, end = self._part.bounds(0, len(next(iter(columns.values()))))
        return {name: values[start:end] for name, values in columns.items()} if end > start else NOTHING


def _require_undivided(batches: Any) -> None:
    for sampler in (getattr(batches, "sampler", None), getattr(batches, "batch_sampler", None)):
        if getattr(sampler, "num_replicas", 1) > 1:
            raise OnwardError(
                f"a {type(sampler).__name__} gives each process its own part of the data already, of which this one "
                "would take a part again. Say so with strategy=onward.torch.Distributed(sharded=True), or leave the "
                "sampler out"
            )


def _length(batches: Any) -> int | None:
    try:
        return len(batches)
    except (TypeError, NotImplementedError):  # no length, or one that is not known
        return None

"""Batches that the user's own iteration yields, in its order and sizes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from onward.errors import OnwardError
from onward.trainer.assignment import Fields, Named
from onward.trainer.batch import Batch, make_batch
from onward.trainer.table import is_computed


class Stream:
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
        try:
            return make_batch(self._name(value), self._fields)
        except OnwardError as error:
            raise type(error)(f"batch {count}: {error}") from error


class DatasetBatches:
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

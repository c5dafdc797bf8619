"""Processes that train together: where they meet, and what happens if one of them does not come, or fails.

Everything that needs all of them begins with `Team.meet`, where each says where it is. One that fails comes to the next
meeting to say so, and nobody waits for it in vain; ones that do different things find out, in place of exchanging what
does not belong together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from onward.callbacks.base import Callback
from onward.errors import NonFiniteError, OnwardError, PeerError
from onward.trainer.interruption import Uninterrupted
from onward.trainer.part import WHOLE, Part
from onward.trainer.strategy import Alone, Strategy

T = TypeVar("T")
logger = logging.getLogger(__name__)


class _PeerNonFiniteError(PeerError, NonFiniteError):
    """Numbers of another process are not finite, so training stopped in all of them."""


class _Word(NamedTuple):
    """What a process says when it comes to a meeting."""

    place: str
    value: Any = None
    failure: tuple[str, str] | None = None  # the kind of error, and what it says


class Team:
    """The processes of a strategy, seen from one of them."""

    def __init__(self, strategy: Strategy | None = None) -> None:
        self.strategy = Alone() if strategy is None else strategy
        self.rank, self.size = self.strategy.rank, self.strategy.size
        self._depth = 0
        self._all_know = False  # of what is being raised

    @property
    def part(self) -> Part:
        """Which part of the data this process takes."""
        return WHOLE if self.strategy.sharded else Part(self.rank, self.size)

    def meet(self, place: str, value: Any = None) -> list[Any]:
        """Wait until all processes are at the same place; returns the value of each."""
        if self.size == 1:
            return [value]
        words = self._exchange(_Word(place, value))
        failures = {rank: word.failure for rank, word in enumerate(words) if word.failure is not None}
        if failures:
            raise self.agreed(_consequence(failures))
        if any(word.place != place for word in words):
            where = "; ".join(f"rank {rank} is at {word.place}" for rank, word in enumerate(words))
            raise self.agreed(
                PeerError(
                    f"the processes do different things: {where}. All of them have to make the same calls in the same "
                    "order, with data of the same size: what only one shall do, such as printing, must not train, "
                    "evaluate, save, load or export"
                )
            )
        return [word.value for word in words]

    def first(self, place: str, make: Callable[[], T]) -> T:
        """What rank 0 makes, for all; the others wait for it."""
        made: T = self.meet(place, make() if self.rank == 0 else None)[0]
        return made

    def agreed(self, error: T) -> T:
        """An error that is about to be raised in all processes, so that nobody needs to be told."""
        self._all_know = True
        return error

    @contextmanager
    def together(self) -> Iterator[None]:
        """A call that all processes make: an error in one of them ends it in all of them."""
        self._depth += 1
        try:
            yield
        except BaseException as error:
            if self.size > 1 and self._depth == 1 and not self._all_know:
                self._tell(error)
            raise
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._all_know = False

    def _tell(self, error: BaseException) -> None:
        """Say at the next meeting that this process has failed."""
        try:
            with Uninterrupted():
                self._exchange(_Word("", failure=(_kind(error), str(error))))
        except OnwardError as unheard:  # what went wrong first is what counts
            logger.warning("rank %d could not tell the other processes that it failed: %s", self.rank, unheard)

    def _exchange(self, word: _Word) -> list[_Word]:
        try:
            return [_Word(*said) for said in self.strategy.gather(tuple(word))]
        except BaseException as error:  # nobody can be told of this
            self._all_know = True
            if isinstance(error, PeerError) and word.place:
                raise PeerError(
                    f"rank {self.rank} waited at {word.place} for the other processes, but {error}"
                ) from error
            raise

    def callbacks(self, given: Sequence[Callback]) -> list[Callback]:
        """Those that this process calls: files are written, and progress is shown, by one of them."""
        return [callback for callback in given if self.rank == 0 or not callback.first_only]


def _kind(error: BaseException) -> str:
    if isinstance(error, (KeyboardInterrupt, NonFiniteError)):
        return KeyboardInterrupt.__name__ if isinstance(error, KeyboardInterrupt) else NonFiniteError.__name__
    return type(error).__name__


def _consequence(failures: dict[int, tuple[str, str]]) -> BaseException:
    """What the failure of other processes is here: Ctrl-C and numbers that are not finite are what they are there."""
    said = "; ".join(f"rank {rank}: {text or kind}" for rank, (kind, text) in failures.items())
    kinds = {kind for kind, _ in failures.values()}
    if kinds == {KeyboardInterrupt.__name__}:
        return KeyboardInterrupt(f"training was interrupted in another process ({said})")
    if kinds == {NonFiniteError.__name__}:
        return _PeerNonFiniteError(said)
    said = "; ".join(f"rank {rank} failed with {kind}: {text}" for rank, (kind, text) in failures.items())
    return PeerError(f"{said}. Rank and file of the traceback are in its own output")

"""The next items of an iteration prepared in a thread, while the consumer works on the last one."""

from __future__ import annotations

import contextvars
import threading
import weakref
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")

# Waiting without an end cannot be interrupted by Ctrl-C on Windows.
_WAKE_UP = 0.2
# How long `close` waits for an iteration that is in the middle of an item; after that it ends by itself.
_PATIENCE = 2.0


class Immediate(Generic[T]):
    """An iteration whose items take less time than a thread needs to hand them over; `Prefetch` leaves it alone."""

    def __init__(self, items: Generator[T, None, None]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return next(self._items)

    def close(self) -> None:
        self._items.close()


class Prefetch(Generic[T]):
    """Iterates over `items` in a thread, at most `depth` of them ahead; 0 means none, and no thread.

    What the iteration raises arrives unchanged, in its place. It is closed in the end, also if the consumer stops
    early: by `close`, by the end of a `with`, or by letting go of this object.
    """

    def __init__(self, items: Iterable[T], depth: int = 2) -> None:
        self._plain: Iterator[T] | None = iter(items) if depth < 1 or isinstance(items, Immediate) else None
        self._line: _Line[T] | None = None
        if self._plain is None:
            self._line = _Line(depth)
            context = contextvars.copy_context()  # numpy's error settings, for one, are the consumer's
            # The thread does not know this object, so that letting go of it ends the thread.
            self._thread = threading.Thread(
                target=context.run, args=(_produce, items, self._line), name="onward prefetch", daemon=True
            )
            self._finalizer = weakref.finalize(self, self._line.stop)
            self._thread.start()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._line is None:
            assert self._plain is not None
            return next(self._plain)
        return self._line.take()

    def __enter__(self) -> Prefetch[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop, and close the iteration; what is prepared already is dropped."""
        if self._line is None:
            assert self._plain is not None
            _close(self._plain)
            return
        self._line.stop()
        if self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE)


class _Line(Generic[T]):
    """What has been produced and not been consumed yet."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._stopped = False
        self._ended = False
        self._error: BaseException | None = None

    def put(self, item: T) -> bool:
        """Add an item as soon as there is room; False if nobody wants it any more."""
        with self._changed:
            while len(self._items) >= self._depth and not self._stopped:
                self._changed.wait()
            if not self._stopped:
                self._items.append(item)
                self._changed.notify_all()
            return not self._stopped

    def end(self, error: BaseException | None) -> None:
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._items.clear()
            self._changed.notify_all()

    def take(self) -> T:
        with self._changed:
            while not self._items and not self._ended and not self._stopped:
                self._changed.wait(_WAKE_UP)
            if self._items:
                item = self._items.popleft()
                self._changed.notify_all()
                return item
            error, self._error = self._error, None
        if error is not None:
            raise error
        raise StopIteration


def _produce(items: Iterable[T], line: _Line[T]) -> None:
    error: BaseException | None = None
    iterator: Iterator[T] | None = None
    try:
        iterator = iter(items)
        for item in iterator:
            if not line.put(item):
                break
            del item  # while the next is made, this one belongs to the consumer alone
    except BaseException as raised:
        error = raised
    try:
        _close(iterator)
    except BaseException as raised:
        error = error or raised
    line.end(error)


def _close(iterator: object) -> None:
    if isinstance(iterator, (Generator, Immediate)):
        iterator.close()

"""Who may use a state when: many readers at once, or one writer, in the order in which they came."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class Access:
    """A lock for readers and writers.

    It is fair: threads that evaluate all the time do not keep one from training, nor the other way round. A thread that
    has access must not ask for it again.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._line: deque[object] = deque()  # those who wait, and the writer at work, who stays first
        self._readers = 0

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Read, beside others who read."""
        with self._changed:
            me = self._wait(alone=False)
            self._readers += 1
            self._leave(me)
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Write, alone."""
        with self._changed:
            me = self._wait(alone=True)
        try:
            yield
        finally:
            with self._changed:
                self._leave(me)

    def _wait(self, alone: bool) -> object:
        """Queue up until it is our turn."""
        me = object()
        self._line.append(me)
        try:
            self._changed.wait_for(lambda: self._line[0] is me and not (alone and self._readers))
        except BaseException:  # an interruption must not block those behind
            self._leave(me)
            raise
        return me

    def _leave(self, me: object) -> None:
        self._line.remove(me)
        self._changed.notify_all()

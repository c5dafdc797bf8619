"""Ctrl-C in the middle of what must not be left half done."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Uninterrupted:
    """A block that Ctrl-C does not break into: the first one is acted on when the block ends, the second at once.

    Only the main thread is ever interrupted; in others this does nothing.
    """

    def __enter__(self) -> Uninterrupted:
        self._noted: tuple[int, FrameType | None] | None = None
        self._previous: Any = None
        if threading.current_thread() is threading.main_thread():
            previous = signal.getsignal(signal.SIGINT)
            if callable(previous):  # not ignored, and not handled by something other than Python
                self._previous = previous
                signal.signal(signal.SIGINT, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._noted is not None:
            self._previous(number, frame)
        self._noted = number, frame

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous is None:
            return
        signal.signal(signal.SIGINT, self._previous)
        if self._noted is not None and not isinstance(error, KeyboardInterrupt):
            self._previous(*self._noted)

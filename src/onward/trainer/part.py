"""Which part of the data a process takes, where several train together."""

from __future__ import annotations

from typing import NamedTuple


class Part(NamedTuple):
    """One of several equal parts of everything; by default, the whole."""

    rank: int = 0
    size: int = 1

    def bounds(self, start: int, end: int) -> tuple[int, int]:
        """Its rows among those from `start` to before `end`: parts differ by one row at most, and may be empty."""
        count = end - start
        return start + count * self.rank // self.size, start + count * (self.rank + 1) // self.size


WHOLE = Part()

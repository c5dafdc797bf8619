"""Lists of names that callers give."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from onward.errors import OnwardError


def listed(argument: str, names: Any, *, one: bool = False) -> list[str]:
    """The names that an argument lists; `one` allows a single name instead of a list."""
    if one and isinstance(names, str):
        return [names]
    if isinstance(names, Iterable) and not isinstance(names, (str, bytes)):
        found = list(names)
        if all(isinstance(name, str) for name in found):
            return found
    raise OnwardError(f"`{argument}` is a list of names{' or one name' if one else ''}, not {names!r}")


def quoted(names: Iterable[str | None]) -> str:
    """Names for an error, not too many of them."""
    known = list(names)
    return ", ".join(map(repr, known[:20])) + (f" and {len(known) - 20} more" if len(known) > 20 else "")

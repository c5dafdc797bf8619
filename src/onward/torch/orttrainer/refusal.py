"""Errors that are both onward's and what the original raised."""

from __future__ import annotations

from onward.errors import OnwardError


class InvalidValueError(OnwardError, ValueError):
    """A description or an option is not what its schema says."""


class MisuseError(OnwardError, AssertionError):
    """An argument, or a call, that cannot mean anything."""


def require(holds: bool, message: str) -> None:
    """Refuse what does not hold."""
    if not holds:
        raise MisuseError(message)

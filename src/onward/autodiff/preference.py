"""Other forms of rules: they say the same, and are used where somebody prefers them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

from onward.autodiff.registry import Rule

# Pairs of a rule and the one to use instead; of this thread or task.
_instead: ContextVar[Sequence[tuple[Rule, Rule]]] = ContextVar("onward_rules", default=())


@contextlib.contextmanager
def preferring(others: Sequence[tuple[Rule, Rule]]) -> Iterator[None]:
    """Inside, graphs are differentiated by other forms: pairs of a rule and the one that is used instead.

    What somebody has declared in the place of the first of a pair is used as it is.
    """
    token = _instead.set(others)
    try:
        yield
    finally:
        _instead.reset(token)


def preferred(rule: Rule) -> Rule:
    """The form of a rule to use."""
    return next((other for plain, other in _instead.get() if plain is rule), rule)

"""Names with options, as they are written in one word: `sgd:momentum=0.9,nesterov=true`."""

from __future__ import annotations

import re
from typing import Any

from onward.errors import OnwardError

_OPTIONS = re.compile(r"\w+=")


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """The name, and what is said behind it."""
    name, colon, rest = text.partition(":")
    if not colon or not _OPTIONS.match(rest):
        return text, {}
    options: dict[str, Any] = {}
    for item in re.split(r",(?=\w+=)", rest):
        key, equals, value = item.partition("=")
        if not equals or not value:
            raise OnwardError(f"{item!r} in {text!r} is no option; write {name}:option=value,option=value")
        options[key] = literal(value)
    return name, options


def literal(text: str) -> Any:
    """A number, a truth value, a list of numbers with spaces between them, or a text."""
    lowered = text.strip().lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    parts = text.split()
    return [literal(part) for part in parts] if len(parts) > 1 else text

"""TOML: the standard library reads it since Python 3.11, and writes none."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Mapping
from typing import Any

from onward.errors import OnwardError


def loads(text: str, what: str) -> dict[str, Any]:
    """The content of a TOML document; `what` is what errors call it."""
    for name in ("tomllib", "tomli"):
        try:
            reader = importlib.import_module(name)
        except ImportError:
            continue
        try:
            found: dict[str, Any] = reader.loads(text)
        except reader.TOMLDecodeError as error:
            raise OnwardError(f"{what} is no TOML: {error}") from error
        return found
    raise OnwardError(f"reading {what} needs the package tomli: pip install tomli")


def dumps(content: Mapping[str, Mapping[str, Any]], comment: str = "") -> str:
    """Sections of entries: texts, numbers, truth values, lists of these, and one level of sections inside."""
    lines = [f"# {line}" for line in comment.splitlines()]
    for section, entries in content.items():
        inner = {key: value for key, value in entries.items() if isinstance(value, Mapping)}
        lines += ["", f"[{section}]", *(_entry(key, value) for key, value in entries.items() if key not in inner)]
        for name, values in inner.items():
            lines += ["", f"[{section}.{name}]", *(_entry(key, value) for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _entry(key: str, value: Any) -> str:
    bare = key and all(letter.isascii() and (letter.isalnum() or letter in "-_") for letter in key)
    return f"{key if bare else _text(key)} = {_value(value)}"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)  # all digits: the same number is read again
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    return _text(str(value))


def _text(text: str) -> str:
    # Of JSON's escapes TOML knows all but those of halves of characters, which are written as they are instead.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

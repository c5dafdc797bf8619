"""JSON that was written by a program, read by one that does not trust it: every entry has the type asked for.

Signatures and plans in the metadata of models, and checkpoints, are such documents. Pure Python: the device runtime
reads them without onnx.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from onward.errors import OnwardError

# The entries of a document; each costs about a hundred bytes of memory, and a microsecond.
_MOST_ENTRIES = 2**22
_LARGEST = 2**63  # beyond it, an integer is of no use to anybody

T = TypeVar("T")


class DamagedError(OnwardError):
    """A document is not what its reader expects."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what} is damaged: {reason}. Use another copy of the file, or generate it again.")


def parse(text: str | bytes, what: str) -> Document:
    """Read a JSON object; `what` is what errors call it."""
    return Document(parse_value(text, what), what)


def parse_value(text: str | bytes, what: str) -> Any:
    """Read any JSON; an object with a key twice is damaged."""
    entries = map(text.count, ",[{") if isinstance(text, str) else map(text.count, (b",", b"[", b"{"))
    if sum(entries) > _MOST_ENTRIES:
        raise DamagedError(what, "it has millions of entries")
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise DamagedError(what, reason) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"{twice!r} occurs twice")
    return result


class Document:
    """A JSON object; asking for an entry that is missing or of another type raises."""

    def __init__(self, content: Any, what: str) -> None:
        if not isinstance(content, dict):
            raise DamagedError(what, f"it should be an object, not {_kind(content)}")
        self._content: dict[str, Any] = content
        self._what = what

    def __contains__(self, key: str) -> bool:
        return key in self._content

    def __iter__(self) -> Iterator[str]:
        for name in self._content:
            if not is_text(name):
                raise self.damaged(f"a name in it is no text: {name!r}")
            yield name

    def require_version(self, newest: int) -> None:
        """Refuse what a later onward has written."""
        version = self.integer("version")
        if version > newest:
            raise OnwardError(
                f"{self._what} has version {version}: it was written by a newer onward, this one reads {newest}; "
                "update onward"
            )

    def has(self, key: str) -> bool:
        """Whether there is something: JSON's null is nothing."""
        return self._content.get(key) is not None

    def text(self, key: str) -> str:
        return self._checked(key, is_text, "a text")

    def flag(self, key: str) -> bool:
        return self._checked(key, lambda value: isinstance(value, bool), "true or false")

    def integer(self, key: str) -> int:
        return self._checked(key, is_integer, "an integer")

    def count(self, key: str) -> int:
        return self._checked(key, lambda value: is_integer(value) and value >= 0, "an integer that is not negative")

    def number(self, key: str) -> float:
        """A number, which may be infinite, but is one."""
        return self._checked(key, is_number, "a number")

    def texts(self, key: str) -> list[str]:
        return self._checked(key, lambda value: isinstance(value, list) and all(map(is_text, value)), "a list of texts")

    def shape(self, key: str) -> tuple[int, ...]:
        return tuple(self._checked(key, _is_shape, "a list of sizes"))

    def scalar(self, key: str) -> int | float | str:
        """A number, NaN among them, or a text."""
        return self._checked(key, lambda x: is_text(x) or is_integer(x) or isinstance(x, float), "a number or a text")

    def plain(self) -> dict[str, Any]:
        """Whatever the JSON has."""
        return dict(self._content)

    def inside(self, key: str) -> Document:
        """An object in this one."""
        return Document(self._get(key), f"{key!r} in {self._what}")

    def list_of(self, key: str) -> list[Document]:
        """A list of objects."""
        found = self._checked(key, lambda value: isinstance(value, list), "a list")
        return [Document(item, f"{key!r} in {self._what}") for item in found]

    def mapping(self, key: str, read: Callable[[Document, str], T]) -> dict[str, T]:
        """An object whose entries are all of one kind: ``read`` is the method that gets one, `Document.text` say."""
        inner = self.inside(key)
        return {name: read(inner, name) for name in inner}

    def damaged(self, reason: str) -> DamagedError:
        """The error that says so."""
        return DamagedError(self._what, reason)

    def _get(self, key: str) -> Any:
        if key not in self._content:
            raise self.damaged(f"it has no {key!r}")
        return self._content[key]

    def _checked(self, key: str, check: Callable[[Any], bool], kind: str) -> Any:
        value = self._get(key)
        if not check(value):
            raise self.damaged(f"{key!r} should be {kind}, not {_kind(value)}")
        return value


def is_text(value: Any) -> bool:
    """Whether this is a text that can be written: JSON allows halves of characters."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def is_integer(value: Any) -> bool:
    """Whether this is an integer of 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and -_LARGEST <= value < _LARGEST


def is_number(value: Any) -> bool:
    """Whether this is a number."""
    return is_integer(value) or (isinstance(value, float) and not math.isnan(value))


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 64 and all(is_integer(size) and size >= 0 for size in value)


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, list) else repr(value)[:80]

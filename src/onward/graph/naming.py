"""Lists of names that callers give, and patterns that stand for several."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from onward.errors import OnwardError, UnknownNameError

_WILD = "*?["
_MANY = 2000  # names, among which similar ones are searched


def listed(argument: str, names: Any, *, one: bool = False) -> list[str]:
    """The names that an argument lists; `one` allows a single name instead of a list."""
    if one and isinstance(names, str):
        return [names]
    if isinstance(names, Iterable) and not isinstance(names, (str, bytes)):
        found = list(names)
        if all(isinstance(name, str) for name in found):
            return found
    raise OnwardError(f"`{argument}` is a list of names{' or one name' if one else ''}, not {names!r}")


def free_name(wanted: str, taken: set[str | None]) -> str:
    """`wanted`, or that with a number, which is then taken."""
    name, count = wanted, 0
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    taken.add(name)
    return name


def quoted(names: Iterable[str | None]) -> str:
    """Names for an error, not too many of them."""
    known = list(names)
    return ", ".join(map(repr, known[:20])) + (f" and {len(known) - 20} more" if len(known) > 20 else "")


def matching(
    argument: str,
    patterns: Any,
    known: Sequence[str],
    others: Mapping[str, str] | None = None,
    *,
    what: str = "parameter",
    why_not: str = "which is not trained unless it is named in full",
) -> list[str]:
    """The names among `known` that names and shell patterns ("classifier.*") stand for, each once.

    `others` can be named too, but no pattern stands for them; they come with the reason. What is said in brackets is
    taken as it is written ("layers[0].*") before it is taken for a choice of characters.

    Args:
        argument: what the caller calls the list, for errors.
        patterns: names and patterns, or one.
        what: what the names are names of, for errors.
        why_not: what errors say about `others` that a pattern would stand for.
    """
    others = others or {}
    found: dict[str, None] = {}
    missing = []
    for pattern in listed(argument, patterns, one=True):
        names = _matches(pattern, known, others)
        found.update(dict.fromkeys(names))
        if not names:
            missing.append(pattern)
    if missing:
        raise UnknownNameError(
            f"`{argument}` names {_said(missing, known, others, why_not)}. There is no {what} of that kind; there are "
            f"{quoted(known) or 'none'}"
        )
    order = {name: index for index, name in enumerate((*known, *others))}
    return sorted(found, key=order.__getitem__)


def _matches(pattern: str, known: Sequence[str], others: Mapping[str, str]) -> list[str]:
    if pattern in others or pattern in known:
        return [pattern]
    if not any(sign in pattern for sign in _WILD):
        return []
    literal = re.compile(fnmatch.translate(pattern.replace("[", "[[]")))
    names = [name for name in known if literal.match(name)]
    return names or [name for name in known if fnmatch.fnmatchcase(name, pattern)]


def _said(missing: Sequence[str], known: Sequence[str], others: Mapping[str, str], why_not: str) -> str:
    """Patterns that match nothing, each with what may be meant."""
    said = []
    for pattern in missing[:20]:
        beyond = _matches(pattern, list(others), {})
        near = near_names(pattern, known)
        if beyond:
            hint = f" (only {beyond[0]!r}, {why_not}: {others[beyond[0]]})"
        else:
            hint = f" (is {' or '.join(map(repr, near))} meant?)" if near else ""
        said.append(f"{pattern!r}{hint}")
    return ", ".join(said) + ("" if len(missing) <= 20 else f" and {len(missing) - 20} more")


def near_names(name: str, known: Iterable[str], count: int = 2) -> list[str]:
    """Names, and patterns of names that begin or end alike, that are spelled like the one that was given."""
    names = list(known)[:_MANY]
    candidates = dict.fromkeys(names)
    if any(sign in name for sign in _WILD):
        parts = [each.split(".") for each in names]
        candidates = dict.fromkeys(
            [*(".".join([*part[:depth], "*"]) for part in parts for depth in range(1, len(part)))]
            + [f"*.{part[-1]}" for part in parts if len(part) > 1]
        )
    return difflib.get_close_matches(name, list(candidates), n=count, cutoff=0.7)

"""The cases whose gradient is not proved, from exceptions.txt: lines `<pattern>: <reason>`, # starts a comment.

A pattern is a shell pattern for the name of a case, or `<operator>/*` for all cases of an operator.
"""

from __future__ import annotations

import functools
from fnmatch import fnmatchcase
from pathlib import Path

from tests.conformance.cases import Case

FILE = Path(__file__).with_name("exceptions.txt")


@functools.cache
def exceptions() -> dict[str, str]:
    """Reasons by pattern."""
    lines = [line for line in FILE.read_text().splitlines() if line.strip() and not line.startswith("#")]
    pairs = [tuple(line.split(": ", 1)) for line in lines]
    assert len({pattern for pattern, _ in pairs}) == len(pairs), f"a pattern is listed twice in {FILE.name}"
    return dict(pairs)


def pattern_for(case: Case) -> str | None:
    """The pattern that lists a case, None where its gradient is expected to be proved."""
    subject = {True: f"{case.operator}/{case.name}", False: case.name}
    return next((pattern for pattern in exceptions() if fnmatchcase(subject["/" in pattern], pattern)), None)

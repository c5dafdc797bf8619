"""What a report tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onward.report.course import Course


@dataclass(frozen=True)
class Training:
    """A training, and what came of it.

    Attributes:
        title: what it is called.
        course: what was measured while training.
        facts: what to know first, by name.
        recipe: how to repeat it, as a program or a file of settings.
        origin: versions, machine and model, by name.
    """

    title: str
    course: Course
    facts: Mapping[str, str] = field(default_factory=dict)
    recipe: str = ""
    origin: Mapping[str, str] = field(default_factory=dict)

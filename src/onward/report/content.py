"""What a report tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from onward.report.course import Course
from onward.report.results import Results


class Fact(NamedTuple):
    """What to know first."""

    name: str
    value: str
    note: str = ""


class Movement(NamedTuple):
    """How far a parameter has come from where it started.

    Attributes:
        kind: "trained" or "statistic".
        relative: the norm of the difference over that of the start; infinite for one that started at zero.
        typical: the root of the mean square of the difference.
        elements: of how many elements this was measured.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    relative: float
    typical: float
    elements: int


class Weight(NamedTuple):
    """A parameter of a layer; its kind is "trained", "frozen", "statistic" or "constant"."""

    name: str
    kind: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """Nodes of a model that belong together: those with parameters, and what follows without any.

    Attributes:
        name: of its parameters or of its first node.
        operators: of its nodes, in their order.
        shape: of what it returns; None where that is not known.
    """

    name: str
    operators: list[str]
    weights: list[Weight] = field(default_factory=list)
    shape: Sequence[int | str | None] | None = None


@dataclass(frozen=True)
class Structure:
    """A model: what goes in, what it is made of, and what comes out."""

    inputs: list[str]
    layers: list[Layer]
    outputs: list[str]
    nodes: int


@dataclass(frozen=True)
class Training:
    """A training, and what came of it.

    Attributes:
        title: what it is called.
        course: what was measured while training.
        facts: what to know first.
        results: what the model does on some data; a sentence where there is none.
        movements: of the parameters, in the order of the model.
        structure: of the model.
        recipe: how to repeat it, as a program or a file of settings.
        origin: versions, machine and model, by name.
    """

    title: str
    course: Course
    facts: Sequence[Fact] = ()
    results: Results | str = ""
    movements: Sequence[Movement] = ()
    structure: Structure | None = None
    recipe: str = ""
    origin: Mapping[str, str] = field(default_factory=dict)

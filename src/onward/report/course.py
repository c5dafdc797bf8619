"""The course of a training as lines over its epochs or steps, of few enough points to be seen."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

POINTS = 200  # of a line: a chart has hardly more pixels
TIME = "Milliseconds a step"
_FEW_EPOCHS = 3  # with fewer, steps say more than epochs
_VALIDATION = "val_"
_NOT_MEASURED = ("epoch", "seconds", "rate")


class Course(Protocol):
    """What happened: `onward.trainer.history.History`, or anything like it."""

    epochs: list[dict[str, Any]]
    losses: list[float]
    rates: list[float]
    seconds: list[float]
    ends: list[int]

    @property
    def samples(self) -> Sequence[tuple[int, float, float]]: ...


class Point(NamedTuple):
    """A number, or the mean of several together with the lowest and the highest of them."""

    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True)
class Line:
    """Numbers in their order: of epochs, or of steps.

    Attributes:
        together: how many numbers make a point.
        missing: how many are not known, NaN or infinite, and in no point.
        median: of all numbers of a line of steps, not of its points.
    """

    name: str
    points: list[Point]
    of_steps: bool = False
    together: int = 1
    missing: int = 0
    median: float = math.nan

    @property
    def low(self) -> float:
        return min(point.low for point in self.points) if self.points else math.nan

    @property
    def high(self) -> float:
        return max(point.high for point in self.points) if self.points else math.nan


@dataclass(frozen=True)
class Curve:
    """Lines that belong into one chart."""

    title: str
    axis: str  # what x is: "epoch" or "step"
    lines: list[Line]
    from_zero: bool = False  # whether what matters is the size, not the change
    may_be_logarithmic: bool = True

    @property
    def heights(self) -> Iterator[float]:
        return (y for line in self.lines for point in line.points for y in (point.low, point.high))


def curves(course: Course) -> list[Curve]:
    """All that was measured: the loss, each metric, the rate, gradient norms, time and memory."""
    axis = _Axis(course)
    made = [_measured(course, axis, base) for base in _bases(course)]
    if not axis.has_steps:
        return made
    steps = np.arange(len(course.losses))
    if course.losses and not any(curve.title == "Loss" for curve in made):
        made.insert(0, Curve("Loss", axis.name, [_of_steps("each step", axis, steps, course.losses)]))
    at = np.array([sample[0] for sample in course.samples], np.int64)
    others = {
        "Learning rate": (steps, course.rates),
        "Gradient norm": (at, [sample[1] for sample in course.samples]),
        TIME: (steps, [1e3 * seconds for seconds in course.seconds]),
        "Memory in MB": (at, [sample[2] / 1e6 for sample in course.samples]),
    }
    for title, (places, values) in others.items():
        if len(values) == 0 or all(map(math.isnan, values)):
            continue
        line = _of_steps("each step", axis, places, values)
        wide = title in ("Gradient norm", TIME)
        made.append(Curve(title, axis.name, [line], from_zero=title != "Gradient norm", may_be_logarithmic=wide))
    return [curve for curve in made if any(line.points or line.missing for line in curve.lines)]


class _Axis:
    """Where epochs and steps are on the axis that all charts share."""

    def __init__(self, course: Course) -> None:
        numbers, count = [int(row["epoch"]) + 1 for row in course.epochs], len(course.losses)
        ends = course.ends
        if len(ends) != len(numbers):  # of an earlier version, which did not note them
            ends = [round(count * (index + 1) / len(numbers)) for index in range(len(numbers))]
        has_steps = all(start < end for start, end in itertools.pairwise([0, *ends]))
        self.name = "epoch" if len(numbers) >= _FEW_EPOCHS or not has_steps else "step"
        self.epochs = [float(x) for x in (numbers if self.name == "epoch" else ends)]
        self._ends, self._numbers, self.has_steps = [0, *ends], numbers, has_steps

    def of(self, steps: np.ndarray) -> np.ndarray:
        """The places of steps: each is done at its end, and what follows the last epoch goes on at its pace."""
        done = steps + 1.0
        if self.name == "step":
            return np.asarray(done)
        ends, places = self._ends, [self._numbers[0] - 1, *self._numbers]
        pace = (places[-1] - places[-2]) / (ends[-1] - ends[-2])
        return np.where(done > ends[-1], places[-1] + (done - ends[-1]) * pace, np.interp(done, ends, places))


def _bases(course: Course) -> list[str]:
    """What was measured in epochs: the loss first, then metrics in their order."""
    names = dict.fromkeys(name for row in course.epochs for name, value in row.items() if _is_number(value))
    bases = dict.fromkeys(name.removeprefix(_VALIDATION) for name in names if name not in _NOT_MEASURED)
    return sorted(bases, key=lambda base: base != "loss")


def _measured(course: Course, axis: _Axis, base: str) -> Curve:
    """One quantity in training and in validation; behind the loss that of the steps."""
    lines = []
    if base == "loss" and axis.has_steps and len(course.losses) > len(course.epochs):
        lines.append(_of_steps("each step", axis, np.arange(len(course.losses)), course.losses))
    for name, key in (("training", base), ("validation", f"{_VALIDATION}{base}")):
        known = [(x, row[key]) for x, row in zip(axis.epochs, course.epochs, strict=True) if _is_number(row.get(key))]
        finite = [Point(x, y, y, y) for x, y in known if math.isfinite(y)]
        if known:
            lines.append(Line(name, thinned(finite), missing=len(known) - len(finite)))
    return Curve("Loss" if base == "loss" else base, axis.name, lines)


def _of_steps(name: str, axis: _Axis, steps: np.ndarray, values: Sequence[float]) -> Line:
    """A line of steps; with more than can be seen, of means of as many as belong to a point."""
    y, x = np.asarray(values, np.float64), axis.of(steps)
    together = -(-len(y) // POINTS)
    points: list[Point] = []
    for first in range(0, len(y), together):
        part = y[first : first + together]
        part = part[np.isfinite(part)]
        if part.size:
            place = float(x[min(first + together, len(y)) - 1])
            points.append(Point(place, float(part.mean()), float(part.min()), float(part.max())))
    finite = y[np.isfinite(y)]
    median = float(np.median(finite)) if finite.size else math.nan
    return Line(name, points, True, together, len(y) - finite.size, median)


def thinned(points: list[Point], limit: int = POINTS) -> list[Point]:
    """At most so many of the points, at equal distances, the last one among them."""
    if len(points) <= limit:
        return points
    kept = np.unique(np.linspace(0, len(points) - 1, limit).round().astype(int))
    return [points[index] for index in kept]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def best(course: Course, name: str, higher: bool) -> Mapping[str, Any] | None:
    """The epoch with the best number of that name."""
    rows = [row for row in course.epochs if _is_number(row.get(name)) and math.isfinite(row[name])]
    return (max if higher else min)(rows, key=lambda row: row[name], default=None)

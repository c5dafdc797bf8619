"""The rows that a model is worst and best at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from onward.report.figure import shown
from onward.report.markup import Markup, joined, name_of, table, tag
from onward.report.picture import picture_of

_EACH = 8
_VALUES = 12  # of a row without a picture
_LONGEST_TEXT = 300


class Example(NamedTuple):
    """A row: what went in, what it is and what it was taken for."""

    row: int
    loss: float
    inputs: Mapping[str, np.ndarray]
    target: str
    prediction: str


@dataclass
class Examples:
    """The worst and the best rows, kept while others come and go.

    Attributes:
        measure: what the number is that says how bad a row is.
        features: names of the numbers of a row, if they have any.
        rows: how many have been looked at.
    """

    measure: str
    features: Sequence[str] = ()
    worst: list[Example] = field(default_factory=list)
    best: list[Example] = field(default_factory=list)
    rows: int = 0

    def candidates(self, losses: np.ndarray) -> list[int]:
        """The rows of a batch that may be among the worst or the best."""
        order = np.argsort(np.where(np.isnan(losses), np.inf, losses), kind="stable")
        return sorted({*order[:_EACH].tolist(), *order[-_EACH:].tolist()})

    def add(self, found: Sequence[Example], rows: int) -> None:
        """Take candidates of a batch of so many rows; NaN is worse than anything."""
        self.rows += rows
        ordered = sorted([*self.worst, *self.best, *found], key=lambda e: (_rank(e.loss), e.row))
        unique = list({example.row: example for example in ordered}.values())
        self.best, self.worst = unique[:_EACH], unique[::-1][:_EACH]


def _rank(loss: float) -> float:
    return float("inf") if np.isnan(loss) else loss


def examples_block(examples: Examples) -> Markup:
    """Both, side by side or below each other."""
    worst, best = examples.worst, examples.best
    if len(worst) == examples.rows:  # all rows are among the worst, so they are among the best as well
        best = []
    elif examples.rows < 2 * _EACH:
        half = (examples.rows + 1) // 2
        worst, best = worst[:half], best[: examples.rows - half]
    said = tag("p", f"Ordered by {examples.measure}, over {shown(examples.rows)} rows.")
    parts = [_group("Worst", worst, examples), _group("Best", best, examples) if best else None]
    return joined([said, *parts])


def _group(title: str, rows: Sequence[Example], examples: Examples) -> Markup:
    pictures = [_pictures(example) for example in rows]
    heading = tag("h3", title)
    if all(pictures):
        cards = [_card(example, shown_, examples) for example, shown_ in zip(rows, pictures, strict=True)]
        return joined([heading, tag("ul", *cards, class_="examples")])
    return joined([heading, _table(title, rows, examples)])


def _pictures(example: Example) -> list[Markup]:
    described = f"row {example.row}, {example.target}"
    made = [picture_of(array, f"{name} of {described}") for name, array in example.inputs.items()]
    return [picture for picture in made if picture is not None]


def _card(example: Example, pictures: Sequence[Markup], examples: Examples) -> Markup:
    facts = [("row", str(example.row)), ("is", example.target), ("predicted", example.prediction)]
    facts.append((examples.measure, shown(float(example.loss))))
    items = [tag("div", tag("dt", name), tag("dd", name_of(value, 60))) for name, value in facts if value]
    return tag("li", *pictures, tag("dl", *items), class_="card")


def _table(title: str, rows: Sequence[Example], examples: Examples) -> Markup:
    columns = list(rows[0].inputs) if rows else []
    body = []
    for example in rows:
        inputs = [_value(example.inputs[name], examples.features) for name in columns]
        body.append([
            example.row, shown(float(example.loss)), name_of(example.target, 60), name_of(example.prediction, 60),
            *inputs,
        ])  # fmt: skip
    head = ["row", examples.measure, "is", "predicted", *map(name_of, columns)]
    return table(head, body, f"{title} rows", numeric=len(head))


def _value(array: np.ndarray, features: Sequence[str]) -> Markup:
    """What went in, as text."""
    if array.dtype.kind in "OSU":
        text = " ".join(str(item) for item in array.reshape(-1)[:_VALUES])
        return tag("bdi", text[:_LONGEST_TEXT] + ("…" if len(text) > _LONGEST_TEXT else ""), class_="text")
    flat = array.reshape(-1)
    numbers = [shown(value.item()) for value in flat[:_VALUES].astype(_plain(flat))]
    if len(features) == flat.size:
        numbers = [f"{name} {number}" for name, number in zip(features, numbers, strict=False)]
    rest = f" … ({flat.size:,} numbers)" if flat.size > _VALUES else ""
    return tag("span", ", ".join(numbers) + rest, class_="text")


def _plain(array: np.ndarray) -> type:
    return np.float64 if array.dtype.kind not in "biu" else np.int64 if array.dtype.kind != "b" else np.bool_

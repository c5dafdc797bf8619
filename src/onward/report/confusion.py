"""Which classes are taken for which, and how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from onward.metrics.base import ratio
from onward.metrics.decoding import Scores
from onward.report.chart import drawn
from onward.report.figure import percent, shown
from onward.report.markup import Markup, details, joined, name_of, scrolling, table, tag

_TABLE = 12  # with so many classes the matrix is a table with its numbers,
_PICTURE = 64  # with so many a picture,
_CONFUSED = 12  # and with more a table of the classes that are confused most.
_PAIRS = 15
_CLASSES = 200  # rows of the table of classes


class Pair(NamedTuple):
    """A class that was taken for another, how often, and the share of its elements that this is."""

    label: int
    predicted: int
    times: int
    share: float


class Confusion:
    """Counts of what is and what was predicted, added up from batch to batch.

    Attributes:
        classes: how many there are.
        names: of the classes, as far as they have any.
    """

    def __init__(self, names: Mapping[int, str] | None = None) -> None:
        self.classes = 0
        self._names = dict(names or {})
        self._counts: Counter[tuple[int, int]] = Counter()

    def add(self, scores: Scores) -> None:
        """Take the elements of a batch."""
        self.classes = max(self.classes, scores.classes)
        codes, counts = np.unique(scores.labels * self.classes + scores.predicted, return_counts=True)
        for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
            self._counts[divmod(code, self.classes)] += count

    @property
    def total(self) -> int:
        return sum(self._counts.values())

    def name(self, label: int) -> str:
        return self._names.get(label, str(label))

    def count(self, label: int, predicted: int) -> int:
        return self._counts[label, predicted]

    def sums(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of each class, how often it is, how often it was predicted, and how often rightly."""
        found, predicted, right = (np.zeros(self.classes, np.int64) for _ in range(3))
        for (label, guess), count in self._counts.items():
            found[label] += count
            predicted[guess] += count
            right[label] += count if label == guess else 0
        return found, predicted, right

    def confused(self, limit: int | None = None) -> list[Pair]:
        """What was taken for something else, most often first."""
        found = self.sums()[0]
        wrong = [
            Pair(label, guess, count, count / found[label])
            for (label, guess), count in self._counts.items()
            if label != guess
        ]
        return sorted(wrong, key=lambda pair: (-pair.times, -pair.share, pair.label, pair.predicted))[:limit]


def confusion_block(confusion: Confusion) -> Markup:
    """The matrix, the classes that are confused most, and a table of all classes."""
    if confusion.classes <= _TABLE:
        matrix: Markup | None = _matrix(confusion, list(range(confusion.classes)))
    elif confusion.classes <= _PICTURE:
        matrix = _picture(confusion)
    else:
        chosen = _most_confused(confusion)
        matrix = _matrix(confusion, chosen) if chosen else None
    beside = tag("div", _pairs(confusion), _classes(confusion), class_="card")
    return joined([tag("div", _heading(confusion), matrix, class_="card large"), beside])


def _heading(confusion: Confusion) -> Markup:
    right = sum(confusion.count(label, label) for label in range(confusion.classes))
    said = f"{shown(right)} of {shown(confusion.total)} are right ({percent(right / max(confusion.total, 1))})."
    if confusion.classes > _PICTURE:
        said += f" Of {shown(confusion.classes)} classes, those are shown that are confused most."
    return joined([tag("h3", "Confusion matrix"), tag("p", said)])


def _most_confused(confusion: Confusion) -> list[int]:
    """The classes of the most frequent confusions, as many as fit."""
    chosen: dict[int, None] = {}
    for pair in confusion.confused():
        if len(chosen.keys() | {pair.label, pair.predicted}) > _CONFUSED:
            break
        chosen.update({pair.label: None, pair.predicted: None})
    return sorted(chosen)


def _matrix(confusion: Confusion, chosen: Sequence[int]) -> Markup:
    """A row for each class, a column for what it was taken for; the others are in the last column."""
    found = confusion.sums()[0]
    whole = len(chosen) == confusion.classes
    columns = [tag("th", name_of(confusion.name(label), 24), scope="col") for label in chosen]
    rows = []
    for label in chosen:
        counts = [confusion.count(label, guess) for guess in chosen]
        cells = [_cell(count, found[label], label == guess) for count, guess in zip(counts, chosen, strict=True)]
        rest = [] if whole else [_cell(int(found[label]) - sum(counts), found[label], False)]
        rows.append(tag("tr", tag("th", name_of(confusion.name(label), 24), scope="row"), *cells, *rest))
    others = [] if whole else [tag("th", "others", scope="col")]
    head = [
        tag("tr", tag("td"), tag("th", "predicted", scope="colgroup", colspan=len(columns) + len(others))),
        tag("tr", tag("th", "is", scope="col"), *columns, *others),
    ]
    caption = tag("caption", "A row is what something is, a column what it was taken for.")
    made = tag("table", caption, tag("thead", *head), tag("tbody", *rows), class_="matrix")
    return scrolling(made, "Confusion matrix")


def _cell(count: int, of: int, right: bool) -> Markup:
    share = count / of if of else 0.0
    # From a quarter on, so that one in a hundred is seen.
    strength = 0.0 if not count else 0.12 + 0.88 * share
    style = f"--strength:{strength:.2f}" if count else None
    kind = "cell right" if right else "cell"
    return tag("td", shown(count) if count else tag("span", "0", class_="none"), class_=kind, style=style)


def _picture(confusion: Confusion) -> Markup:
    found = confusion.sums()[0]
    labels = [f"{label:03d}" for label in range(confusion.classes)]
    values = [
        {
            "is": labels[label],
            "as": labels[guess],
            "share": _visible(count / found[label]),
            "colour": "var(--shade)" if label == guess else "var(--second)",
            "said": f"{confusion.name(label)} taken for {confusion.name(guess)}: {count}",
        }
        for (label, guess), count in sorted(confusion._counts.items())
    ]
    axis: dict[str, Any] = {"labels": False, "ticks": False, "grid": False, "domain": False}
    spec = {
        "data": {"values": values},
        "mark": "rect",
        "view": {"stroke": "var(--line)"},
        "encoding": {
            "x": {"field": "as", "type": "ordinal", "title": "predicted", "axis": axis, "scale": {"domain": labels}},
            "y": {"field": "is", "type": "ordinal", "title": "is", "axis": axis, "scale": {"domain": labels}},
            "opacity": {"field": "share", "type": "quantitative", "scale": None, "legend": None},
            "color": {"field": "colour", "type": "nominal", "scale": None, "legend": None},
            "description": {"field": "said"},
        },
    }
    said = f"Confusion matrix of {confusion.classes} classes; the most frequent confusions are in the table beside it"
    return tag("div", drawn(spec, said, height=340), class_="matrix-picture")


def _visible(share: float) -> float:
    return round(0.15 + 0.85 * share, 3)


def _pairs(confusion: Confusion) -> Markup:
    pairs = confusion.confused(_PAIRS)
    if not pairs:
        return joined([tag("h3", "Confused most"), tag("p", "Nothing was taken for something else.")])
    rows = [
        (name_of(confusion.name(pair.label)), name_of(confusion.name(pair.predicted)), shown(pair.times),
         percent(pair.share))
        for pair in pairs
    ]  # fmt: skip
    made = table(["is", "taken for", "times", "of all"], rows, "What was taken for something else", numeric=2)
    return joined([tag("h3", "Confused most"), made])


def _classes(confusion: Confusion) -> Markup:
    """Recall and precision of each class, the worst ones first."""
    found, predicted, right = confusion.sums()
    recall, precision = ratio(right, found), ratio(right, predicted)
    order = sorted(range(confusion.classes), key=lambda label: (np.isnan(recall[label]), recall[label], label))
    rows = [
        (name_of(confusion.name(label)), shown(int(found[label])), percent(recall[label]), percent(precision[label]))
        for label in order[:_CLASSES]
    ]
    caption = "Recall is the share of a class that was found, precision that of its predictions that are right"
    if confusion.classes > _CLASSES:
        caption += f"; the {_CLASSES} classes with the lowest recall, of {shown(confusion.classes)}"
    made = table(["class", "elements", "recall", "precision"], rows, caption)
    return details("Each class", made)

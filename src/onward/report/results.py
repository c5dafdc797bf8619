"""What a trained model does on some data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onward.report.confusion import Confusion, confusion_block
from onward.report.examples import Examples, examples_block
from onward.report.figure import shown
from onward.report.labels import Labels, labels_block
from onward.report.markup import Markup, name_of, section, tag
from onward.report.residuals import Residuals, residuals_block


@dataclass
class Results:
    """Results on one data set.

    Attributes:
        data: what it is called.
        rows: how many it has.
        numbers: the loss and the metrics of all of them.
        compared: which output is compared with which target.
        outcome: what is known about the differences.
        examples: single rows.
        notes: what could not be done, and why.
    """

    data: str
    rows: int = 0
    numbers: Mapping[str, float] = field(default_factory=dict)
    compared: str = ""
    outcome: Confusion | Labels | Residuals | None = None
    examples: Examples | None = None
    notes: list[str] = field(default_factory=list)


def results_sections(results: Results | str) -> list[Markup]:
    """The sections of results and of examples, as far as there are any."""
    if isinstance(results, str):
        return [section("Results", tag("p", results), anchor="results")] if results else []
    said = [f"{shown(results.rows)} rows of the {results.data}.", results.compared, *results.notes]
    numbers = [tag("div", tag("dt", name_of(name)), tag("dd", shown(value))) for name, value in results.numbers.items()]
    parts = [tag("p", " ".join(filter(None, said))), tag("dl", *numbers, class_="facts small")]
    outcome = _outcome(results)
    if outcome is not None:
        parts.append(tag("div", outcome, class_="grid"))
    made = [section("Results", *parts, anchor="results")]
    if results.examples is not None and results.examples.rows:
        made.append(section("Examples", examples_block(results.examples), anchor="examples"))
    return made


def _outcome(results: Results) -> Markup | None:
    outcome = results.outcome
    if isinstance(outcome, Confusion):
        return confusion_block(outcome) if outcome.total else None
    if isinstance(outcome, Labels):
        return labels_block(outcome) if outcome.counts is not None else None
    return None if outcome is None else residuals_block(outcome)

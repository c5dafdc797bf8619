"""The page: its frame, its style and the order of its sections."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources

from onward.report.content import Fact, Training
from onward.report.curves import curves_section
from onward.report.layers import layers_section
from onward.report.markup import Markup, details, joined, name_of, section, tag
from onward.report.parameters import parameters_section
from onward.report.results import results_sections

# Nothing is loaded and nothing runs, whatever a name in a model or in data says.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_HEADING = re.compile(r'<h2 id="([a-z-]+)">(.*?)</h2>')


def page(training: Training) -> str:
    """A report as a document of its own."""
    found = [
        curves_section(training.course),
        *results_sections(training.results),
        parameters_section(training.movements),
        layers_section(training.structure),
        _recipe(training),
    ]
    sections = [each for each in found if each is not None]
    style = resources.files("onward.report").joinpath("page.css").read_text("utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="generator", content="onward"),
        tag("title", training.title),
        tag("style", Markup(style)),
    )
    header = tag("header", tag("h1", name_of(training.title)), _facts(training.facts))
    body = tag(
        "body",
        tag("a", "Skip to the report", href="#content", class_="skip"),
        header,
        _contents(sections),
        tag("main", *sections, id="content", tabindex="-1"),
        tag("footer", tag("p", "Made by onward. Everything is in this file; it loads nothing and runs nothing.")),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _facts(facts: Sequence[Fact]) -> Markup:
    items = [
        tag("div", tag("dt", name_of(fact.name)), tag("dd", fact.value, tag("small", fact.note) if fact.note else None))
        for fact in facts
    ]
    return tag("dl", *items, class_="facts")


def _contents(sections: list[Markup]) -> Markup:
    """Links to the sections that there are."""
    found = [match for text in sections if (match := _HEADING.search(text))]
    links = [tag("li", tag("a", Markup(match[2]), href=f"#{match[1]}")) for match in found]
    return tag("nav", tag("ul", *links), aria_label="Sections")


def _recipe(training: Training) -> Markup:
    """How to repeat the training, and what it was made with."""
    parts: list[Markup] = []
    if training.recipe:
        code = tag("pre", tag("code", training.recipe), tabindex="0", role="region", aria_label="Recipe")
        parts.append(code)
    items = [tag("div", tag("dt", name), tag("dd", name_of(value, 200))) for name, value in training.origin.items()]
    parts.append(details("Versions and machine", tag("dl", *items, class_="origin"), open_=True))
    return section("How to repeat it", joined(parts), anchor="recipe")

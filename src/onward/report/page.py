"""The page: its frame, its style and the order of its sections."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources

from onward.report.content import Training
from onward.report.curves import curves_section
from onward.report.markup import Markup, details, joined, name_of, section, tag

# Nothing is loaded and nothing runs, whatever a name in a model or in data says.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_HEADING = re.compile(r'<h2 id="([a-z-]+)">(.*?)</h2>')


def page(training: Training) -> str:
    """A report as a document of its own."""
    sections = [curves_section(training.course), _recipe(training)]
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


def _facts(facts: Mapping[str, str]) -> Markup:
    items = [tag("div", tag("dt", name_of(name)), tag("dd", value)) for name, value in facts.items()]
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

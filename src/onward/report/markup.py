"""HTML as values: what is not `Markup` is text, and is escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

# HTML has no such characters, not even escaped ones.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_VOID = ("br", "img", "link", "meta")

Child = object  # Markup, text, a number, or None


class Markup(str):
    """A piece of HTML."""

    __slots__ = ()


def escaped(value: object) -> Markup:
    """Any text as HTML that shows it."""
    return value if isinstance(value, Markup) else Markup(html.escape(_FORBIDDEN.sub("\ufffd", str(value))))


def tag(element: str, /, *children: Child, **attributes: object) -> Markup:
    """An element. Names of attributes may end in `_`, and have one in the place of each `-`; None leaves one out."""
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if element in _VOID:
        return Markup(f"<{element}{written}>")
    return Markup(f"<{element}{written}>{joined(children)}</{element}>")


def joined(children: Iterable[Child]) -> Markup:
    """Pieces one after the other."""
    return Markup("".join(escaped(child) for child in children if child is not None))


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escaped(value)}"'


def name_of(text: object, limit: int = 80) -> Markup:
    """A name from a model or from data: short, and in its own direction of writing."""
    shown = str(text)
    if len(shown) <= limit:
        return tag("bdi", shown)
    return tag("bdi", f"{shown[: limit * 2 // 3]}…{shown[-limit // 3 :]}", title=shown[:1000])


def table(columns: Sequence[Child], rows: Iterable[Sequence[Child]], caption: str, *, numeric: int = 1) -> Markup:
    """A table that scrolls by itself where it is too wide; columns from `numeric` on hold numbers."""
    head = tag("tr", *(tag("th", column, scope="col", class_=_side(i, numeric)) for i, column in enumerate(columns)))
    body = [
        tag(
            "tr",
            *(
                tag("th", cell, scope="row") if i == 0 else tag("td", cell, class_=_side(i, numeric))
                for i, cell in enumerate(row)
            ),
        )
        for row in rows
    ]
    made = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *body))
    return scrolling(made, caption)


def scrolling(content: Markup, label: str) -> Markup:
    """What may be wider than the page: it can be scrolled, also by keys."""
    return tag("div", content, class_="wide", role="region", aria_label=label, tabindex="0")


def _side(index: int, numeric: int) -> str | None:
    return "number" if index >= numeric else None


def details(summary: Child, *children: Child, open_: bool = False) -> Markup:
    """What is there for those who want it."""
    return tag("details", tag("summary", summary), *children, open=open_)


def section(title: str, *children: Child, anchor: str) -> Markup:
    """A part of the page with its heading."""
    return tag("section", tag("h2", title, id=anchor), *children, aria_labelledby=anchor)

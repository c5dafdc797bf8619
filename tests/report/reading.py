"""Reads a report as a browser does, and says what is wrong with it."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = {"meta", "img", "br", "link"}
_SVG_LEAVES = {"path", "line", "rect", "g"}


@dataclass
class Element:
    """An element with what is in it."""

    name: str
    attributes: dict[str, str | None]
    parent: Element | None = None
    children: list[Element] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def all(self, *names: str) -> list[Element]:
        """The elements of these names in it, in their order."""
        found = []
        for child in self.children:
            if child.name in names or not names:
                found.append(child)
            found += child.all(*names)
        return found

    @property
    def text(self) -> str:
        """What it says, in the order of the page."""
        return "".join(self.texts)

    def get(self, name: str) -> str:
        return self.attributes.get(name) or ""


class Reader(HTMLParser):
    """Builds the tree, and notes what does not fit together."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self._here = self.root
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs), self._here)
        if len(dict(attrs)) != len(attrs):
            self.wrong.append(f"<{tag}> has an attribute twice")
        self._here.children.append(element)
        if tag not in _VOID:
            self._here = element

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._here.children.append(Element(tag, dict(attrs), self._here))
        if tag not in _SVG_LEAVES:
            self.wrong.append(f"<{tag}/> ends itself")

    def handle_endtag(self, tag: str) -> None:
        if self._here.name != tag:
            self.wrong.append(f"</{tag}> ends <{self._here.name}>")
            return
        assert self._here.parent is not None
        self._here = self._here.parent

    def handle_data(self, data: str) -> None:
        element: Element | None = self._here
        while element is not None:
            element.texts.append(data)
            element = element.parent


def read(text: str) -> Element:
    """The page, which has nothing wrong with it."""
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert not reader.wrong, reader.wrong
    page = reader.root
    found = problems(page)
    assert not found, sorted(set(found))
    return page


def problems(page: Element) -> list[str]:
    """What a screen reader, a keyboard or a careful reader would stumble over."""
    wrong = []
    every = page.all()
    ids = [element.get("id") for element in every if element.get("id")]
    if len(ids) != len(set(ids)):
        wrong.append("an id is there twice")
    for name in ("header", "nav", "main", "footer", "h1"):
        if len(page.all(name)) != 1:
            wrong.append(f"there are {len(page.all(name))} <{name}>")
    if len(page.all("head")[0].all("title")) != 1:
        wrong.append("it has no title")
    for element in every:
        wrong += _of_element(element, ids)
    levels = [int(element.name[1]) for element in page.all("h1", "h2", "h3", "h4")]
    wrong += [f"h{a} is followed by h{b}" for a, b in itertools.pairwise(levels) if b > a + 1]
    return wrong


def _of_element(element: Element, ids: list[str]) -> list[str]:
    wrong, name = [], element.name
    if name in ("script", "iframe", "object", "embed", "base", "form", "link"):
        wrong.append(f"there is a <{name}>")
    for key, value in element.attributes.items():
        if key.startswith("on"):
            wrong.append(f"<{name}> has {key}")
        if key in ("src", "href", "srcset", "xlink:href", "action", "poster", "data") or "url(" in (value or ""):
            inside = (value or "").startswith(("#", "data:image/png;base64,"))
            wrong += [] if inside else [f"<{name} {key}> leads to {value!r:.80}"]
    if name == "a" and element.get("href").removeprefix("#") not in ids:
        wrong.append(f"a link leads to {element.get('href')}")
    if name == "img" and not element.get("alt"):
        wrong.append("a picture has no text")
    if name == "svg" and (element.get("role") != "img" or not element.get("aria-label")):
        wrong.append("a chart has no name")
    if name == "table" and not element.all("caption"):
        wrong.append("a table has no caption")
    if name == "th" and not element.get("scope"):
        wrong.append("a heading of a table belongs to nothing")
    if name == "th" and not element.text.strip() and not element.all("img"):
        wrong.append("a heading of a table is empty")
    if name == "details" and (not element.children or element.children[0].name != "summary"):
        wrong.append("details have no summary")
    if name == "section" and element.get("aria-labelledby") not in ids:
        wrong.append("a section has no name")
    if element.get("role") == "region" and not (element.get("aria-label") and element.get("tabindex") == "0"):
        wrong.append("a region that scrolls cannot be reached")
    if name == "figure" and not (element.all("figcaption") and element.all("table")):
        wrong.append("a chart has no caption, or no table behind it")
    return wrong


def styles(text: str) -> str:
    found = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert found is not None
    return found[1]

"""Charts: Vega-Lite specifications as SVG, which takes its colours from the style of the page.

vl-convert carries Vega and draws without a browser and without a network. A drawn chart needs no script in the page, so
that the page can forbid scripts altogether; it is a tenth of the size of Vega itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from onward.errors import OnwardError
from onward.report.markup import Markup, escaped

WIDTH = 340  # of a chart with its axes: that of a small phone, less its margins
_SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
_FONT = "system-ui, sans-serif"
_CONFIG: dict[str, Any] = {
    "font": _FONT,
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--quiet)",
        "titleColor": "var(--quiet)",
        "titleFontWeight": "normal",
        "labelFontSize": 11,
        "titleFontSize": 11,
        "gridColor": "var(--line)",
        "domainColor": "var(--line)",
        "tickColor": "var(--line)",
        "tickCount": 5,
        "labelFlush": False,
        "labelOverlap": True,
    },
    "axisX": {"grid": False},
    "axisY": {"domain": False, "ticks": False, "labelPadding": 6},
}
_LONG = re.compile(r"-?\d+\.\d{3,}(?:e-\d+)?")
_PLACES = re.compile(r' (?:d|transform|x|y|x2|y2|width|height)="[^"]*"')
# A mark that says what it shows says so when it is pointed at as well.
_DESCRIBED = re.compile(r'<(path|text|rect) aria-label="([^"]*)" role="graphics-symbol"([^>]*)/>')
_ROLES = re.compile(r' (?:role="graphics-[a-z]+"|aria-roledescription="[^"]*"|aria-label="[^"]*"|aria-hidden="true")')
_ROOT = re.compile(r"<svg [^>]*viewBox=\"([^\"]*)\"[^>]*>")


def require_library() -> Any:
    """What draws the charts."""
    try:
        import vl_convert
    except ImportError as error:
        raise OnwardError(
            "a report needs vl-convert, which draws its charts and is not installed: pip install 'onward[report]'"
        ) from error
    return vl_convert


def drawn(spec: Mapping[str, Any], description: str, *, height: int = 200, width: int = WIDTH) -> Markup:
    """A chart that is as wide as its place; `description` is what a screen reader says."""
    whole = {
        "$schema": _SCHEMA,
        "width": width,
        "height": height,
        "autosize": {"type": "fit", "contains": "padding"},
        "padding": 0,
        "background": None,
        "config": _CONFIG,
        **spec,
    }
    svg = require_library().vegalite_to_svg(whole)
    return Markup(_adapted(svg, description))


def _adapted(svg: str, description: str) -> str:
    """As a part of a page: of any width, one picture for a screen reader, and in a tenth of a pixel's precision."""
    svg = _DESCRIBED.sub(lambda found: f"<{found[1]}{found[3]}><title>{found[2]}</title></{found[1]}>", svg)
    svg = _ROLES.sub("", svg)
    svg = _PLACES.sub(lambda found: _LONG.sub(lambda number: f"{float(number[0]):.1f}", found[0]), svg)
    svg = re.sub(r' (?:pointer-events="none"|opacity="1"|class="[^"]*"|stroke-width="1")', "", svg)
    svg = re.sub(r'<path(?: d="(?:M0,0h0v0h0Z)?"| display="none")+/>', "", svg)
    label = escaped(description)
    return _ROOT.sub(lambda found: f'<svg viewBox="{found[1]}" role="img" aria-label="{label}">', svg, count=1)


def axis_format(largest: float) -> str:
    """How the numbers of an axis are written, in d3's language: in full as long as that is short."""
    if not 1e-4 <= largest < 1e5:
        return "~e" if largest < 1e-4 else "~s"
    return "~r"

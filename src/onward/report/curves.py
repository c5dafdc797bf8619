"""The section of curves: a small chart for each quantity, its numbers behind it."""

from __future__ import annotations

import math
from typing import Any

from onward.report.chart import axis_format, drawn
from onward.report.course import TIME, Course, Curve, Line, curves, thinned
from onward.report.figure import shown
from onward.report.markup import Markup, details, joined, name_of, section, table, tag

_ROWS = 60  # of a table behind a chart
# Lines differ by colour, by dashes and by the form of their points, so that colour is never all that tells them apart.
_LOOKS: dict[str, dict[str, Any]] = {
    "training": {"color": "var(--first)", "dash": [1, 0], "shape": "circle"},
    "validation": {"color": "var(--second)", "dash": [5, 3], "shape": "square"},
}
_MARKED = 40  # with more points than that, points are drawn as a line only
_WIDE_RANGE = 100.0


def curves_section(course: Course) -> Markup:
    """Everything that was measured in the course of training."""
    made = curves(course)
    if not made:
        return section("Course of training", tag("p", "No step has been made."), anchor="course")
    grid = tag("div", *map(_figure, made), class_="grid")
    return section("Course of training", grid, _epochs(course), anchor="course")


def _figure(curve: Curve) -> Markup:
    described = _description(curve)
    caption = tag(
        "figcaption",
        tag("h3", name_of(curve.title, 40)),
        _legend(curve),
        tag("p", described),
    )
    notes = tag("p", _notes(curve), class_="note") if _notes(curve) else None
    data = details("Numbers", *(_numbers(curve, line) for line in curve.lines))
    return tag("figure", caption, drawn(_spec(curve), f"{curve.title}: {described}"), notes, data, class_="card")


def _description(curve: Curve) -> str:
    """What the chart shows, in words."""
    if curve.title == TIME and curve.lines[0].points:
        return f"half take at most {shown(curve.lines[0].median)}"
    said = []
    for line in sorted(curve.lines, key=lambda line: line.of_steps):
        if not line.points:
            said.append(f"{line.name}: no finite number")
            continue
        first, last = line.points[0], line.points[-1]
        name = "" if line.of_steps and len(curve.lines) == 1 else f"{line.name} "
        if line.of_steps and len(curve.lines) > 1:
            continue
        if line.low == line.high:
            said.append(f"{name}{shown(first.y)}")
        else:
            said.append(f"{name}from {shown(first.y)} to {shown(last.y)}")
    return "; ".join(said)


def _legend(curve: Curve) -> Markup | None:
    if len(curve.lines) < 2:
        return None
    items = [tag("li", tag("span", class_=f"key {line.name.replace(' ', '-')}"), line.name) for line in curve.lines]
    return tag("ul", *items, class_="legend")


def _notes(curve: Curve) -> str:
    notes = []
    for line in curve.lines:
        if line.together > 1 and line.low != line.high:
            notes.append(
                f"A point is the mean of {line.together} steps; the band goes from the lowest to the highest of them."
            )
        if line.missing:
            notes.append(f"{line.missing:,} numbers ({line.name}) are NaN, infinite or not known, and left out.")
    if _is_logarithmic(curve):
        notes.append("The scale is logarithmic.")
    return " ".join(notes)


def _is_logarithmic(curve: Curve) -> bool:
    """Whether numbers differ so much that the small ones would all be on the axis."""
    if not curve.may_be_logarithmic or not any(line.points for line in curve.lines):
        return False
    means = [point.y for line in curve.lines for point in line.points]
    return min(curve.heights) > 0 and max(means) / min(means) > _WIDE_RANGE


def _spec(curve: Curve) -> dict[str, Any]:
    is_log = _is_logarithmic(curve)
    scale: dict[str, Any] = {"type": "log", "nice": False} if is_log else {"zero": curve.from_zero}
    x = {"field": "x", "type": "quantitative", "title": curve.axis, "scale": {"nice": False}, "axis": {"format": "~s"}}
    y = {"field": "y", "type": "quantitative", "title": None, "scale": scale}
    heights = list(curve.heights)
    y["axis"] = {"format": axis_format(max(map(abs, heights), default=1.0))}
    if is_log:
        y["axis"] = {"format": "~g", "values": _powers(heights)}
    layers = [layer for line in curve.lines for layer in _layers(curve, line, x, y)]
    return {"layer": layers}


def _powers(heights: list[float]) -> list[float]:
    """The marks of a logarithmic axis: powers of ten, each or every few."""
    low, high = math.floor(math.log10(min(heights))), math.ceil(math.log10(max(heights)))
    return [10.0**power for power in range(low, high + 1, max(1, (high - low) // 5))]


def _layers(curve: Curve, line: Line, x: dict[str, Any], y: dict[str, Any]) -> list[dict[str, Any]]:
    values = [{**point._asdict(), "said": _said(curve, line, point.x, point.y)} for point in line.points]
    data, place = {"values": values}, {"x": x, "y": y}
    if line.of_steps:
        alone = len(curve.lines) == 1
        colour = "var(--first)" if alone else "var(--faint)"
        stroke: dict[str, Any] = {"type": "line", "color": colour, "strokeWidth": 1.5 if alone else 1}
        if len(line.points) == 1:
            stroke = {"type": "point", "color": colour, "filled": True}
        layers = [{"data": data, "mark": stroke, "encoding": place}]
        if line.together > 1:
            band = {"type": "area", "color": colour, "opacity": 0.25}
            ends = {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}}
            layers.insert(0, {"data": data, "mark": band, "encoding": ends})
        return layers
    look = _LOOKS[line.name]
    stroke = {"type": "line", "color": look["color"], "strokeWidth": 2, "strokeDash": look["dash"]}
    marks = {"type": "point", "color": look["color"], "filled": True, "shape": look["shape"], "size": 28, "opacity": 1}
    layers = [{"data": data, "mark": stroke, "encoding": place}]
    if len(line.points) <= _MARKED:
        layers.append({"data": data, "mark": marks, "encoding": {**place, "description": {"field": "said"}}})
    return layers


def _said(curve: Curve, line: Line, x: float, y: float) -> str:
    return f"{line.name}, {curve.axis} {x:g}: {shown(y)}"


def _numbers(curve: Curve, line: Line) -> Markup:
    points = thinned(line.points, _ROWS)
    caption = f"{curve.title}, {line.name}"
    if len(points) < len(line.points):
        caption += f": {len(points)} of {len(line.points)} points"
    if line.together == 1:
        return table([curve.axis, curve.title], [(f"{p.x:.6g}", shown(p.y)) for p in points], caption)
    rows = [(f"{p.x:.6g}", shown(p.y), shown(p.low), shown(p.high)) for p in points]
    return table([f"to {curve.axis}", "mean", "lowest", "highest"], rows, caption)


def _epochs(course: Course) -> Markup | None:
    """The table of epochs, as the history has it."""
    if not course.epochs:
        return None
    columns = list(dict.fromkeys(name for row in course.epochs for name in row))
    rows = course.epochs
    caption = "What was measured in each epoch"
    if len(rows) > 2 * _ROWS:
        rows, caption = [*rows[:_ROWS], *rows[-_ROWS:]], f"The first and the last {_ROWS} of {len(rows):,} epochs"
    body = [[shown(_from_one(name, row.get(name))) for name in columns] for row in rows]
    return details("All epochs", joined([table([name_of(name) for name in columns], body, caption)]))


def _from_one(name: str, value: Any) -> Any:
    """Epochs are counted from 1 here, as in the charts."""
    return value + 1 if name == "epoch" and isinstance(value, int) else value

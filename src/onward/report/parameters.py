"""The section of parameters: how far each has come from where it started."""

from __future__ import annotations

import math
from collections.abc import Sequence

from onward.report.content import Movement
from onward.report.figure import percent, shown
from onward.report.markup import Markup, details, joined, name_of, scrolling, section, tag

_SHOWN = 20
_ALL = 3000
_STILL = 1e-6  # a relative change below this is that of rounding


def parameters_section(movements: Sequence[Movement]) -> Markup | None:
    """Which parameters moved, those first that moved most."""
    if not movements:
        return None
    ordered = sorted(movements, key=_rank, reverse=True)
    parts: list[Markup | None] = [tag("p", _summary(movements)), _table(ordered[:_SHOWN], ordered)]
    if len(ordered) > _SHOWN:
        every = _table(movements[:_ALL], ordered)
        parts.append(details(f"All {shown(len(movements))} in the order of the model", every))
    return section("Parameters", joined(parts), anchor="parameters")


def _rank(movement: Movement) -> float:
    """NaN first: whoever has become NaN is what to look at."""
    return math.inf if math.isnan(movement.relative) else min(movement.relative, 1e300)


def _summary(movements: Sequence[Movement]) -> str:
    trained = [movement for movement in movements if movement.kind == "trained"]
    still = [movement for movement in trained if movement.relative < _STILL]
    said = "The relative change of a tensor is the norm of the difference to the model as it was given, over the norm "
    said += "of what it was."
    if trained and len(still) == len(trained):
        return f"{said} Nothing has moved."
    if still:
        return f"{said} {shown(len(still))} of {shown(len(trained))} trained tensors have not moved."
    sampled = any(movement.elements < math.prod(movement.shape) for movement in movements)
    return said + (" Of large tensors a sample of their elements was compared." if sampled else "")


def _table(rows: Sequence[Movement], ordered: Sequence[Movement]) -> Markup:
    largest = max((m.relative for m in ordered if math.isfinite(m.relative)), default=0.0) or 1.0
    names = ("parameter", "kind", "shape", "relative change", "typical")
    head = tag("tr", *(tag("th", name, scope="col", class_="number" if name == "typical" else None) for name in names))
    body = [_row(movement, largest) for movement in rows]
    caption = "Changes of parameters; typical is the root of the mean square of the difference"
    made = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *body), class_="moves")
    return scrolling(made, caption)


def _row(movement: Movement, largest: float) -> Markup:
    share = min(movement.relative / largest, 1.0) if math.isfinite(movement.relative) else 1.0
    bar = tag("span", class_=f"bar {movement.kind}", style=f"--share:{share:.4f}", aria_hidden="true")
    said = "started at zero" if math.isinf(movement.relative) else _changed(movement.relative)
    return tag(
        "tr",
        tag("th", name_of(movement.name, 60), scope="row"),
        tag("td", tag("span", movement.kind, class_=f"chip {movement.kind}")),
        tag("td", "×".join(map(str, movement.shape)) or "scalar", class_="shape"),
        tag("td", bar, said, class_="measured"),
        tag("td", shown(movement.typical), class_="number"),
    )


def _changed(relative: float) -> str:
    if math.isnan(relative):
        return "NaN"
    if relative == 0:
        return "0"
    return percent(relative) if relative >= 1e-3 else f"{100 * relative:.2g}%"

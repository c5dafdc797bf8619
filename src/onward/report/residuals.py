"""How far predictions are from what they should be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onward.report.chart import axis_format, drawn
from onward.report.figure import shown
from onward.report.markup import Markup, details, joined, table, tag

_SAMPLE = 5000  # elements that a histogram is made of,
_DRAWN = 600  # and points of a scatter plot
_BINS = 30
_COLUMNS = 6  # with so many outputs each has a plot of its own
_ROWS = 50


class Residuals:
    """Predictions and targets of all rows: sums of everything, and a sample of rows to be drawn."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self._keys = np.zeros(0)
        self._kept: np.ndarray | None = None  # [rows, 2, K]
        self._sums: np.ndarray | None = None  # [5, K]
        self._middle: np.ndarray | None = None  # [K]; sums of squares are those of distances from it
        self.rows = 0
        self.left_out = 0

    def add(self, prediction: np.ndarray, target: np.ndarray) -> None:
        """Take the rows of a batch; both have the same shape, and rows first."""
        pair = np.stack([x.astype(np.float64).reshape(len(prediction), -1) for x in (prediction, target)], axis=1)
        finite = np.isfinite(pair).all(axis=(1, 2))
        self.left_out += int((~finite).sum())
        pair = pair[finite]
        self.rows += len(pair)
        y, t = pair[:, 0], pair[:, 1]
        if self._middle is None and len(pair):
            self._middle = t.mean(axis=0)
        error, offset = y - t, t - (0 if self._middle is None else self._middle)
        sums = np.stack([x.sum(axis=0) for x in (error, error**2, np.abs(error), offset, offset**2)])
        self._sums = sums if self._sums is None else self._sums + sums
        keys = np.concatenate([self._keys, self._random.random(len(pair))])
        kept = pair if self._kept is None else np.concatenate([self._kept, pair])
        limit = max(1, _SAMPLE // max(1, min(pair.shape[2], _SAMPLE)))
        chosen = np.sort(np.argpartition(keys, limit - 1)[:limit]) if len(keys) > limit else slice(None)
        self._keys, self._kept = keys[chosen], kept[chosen]

    @property
    def outputs(self) -> int:
        return 0 if self._kept is None else self._kept.shape[2]

    def sample(self, output: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Some predictions with their targets, of one output or of all."""
        assert self._kept is not None
        kept = self._kept if output is None else self._kept[:, :, output : output + 1]
        return kept[:, 0].reshape(-1), kept[:, 1].reshape(-1)

    def numbers(self) -> list[tuple[str, np.ndarray]]:
        """What describes each output: bias, typical errors, share of the variance that is explained."""
        assert self._sums is not None
        difference, squares, absolute, offset, offsets = self._sums / max(self.rows, 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            variance = offsets - offset**2
            explained = np.where(variance > 0, 1 - squares / variance, math.nan)
        return [
            ("mean error", difference),
            ("root mean square", np.sqrt(squares)),
            ("mean absolute", absolute),
            ("R²", explained),
        ]


def residuals_block(residuals: Residuals) -> Markup:
    """Predictions over targets, the distribution of the differences, and their numbers."""
    if not residuals.rows:
        return tag("div", tag("h3", "Residuals"), tag("p", "No row has finite numbers."), class_="card")
    several = 1 < residuals.outputs <= _COLUMNS
    figures = [_scatter(residuals, i if several else None) for i in range(residuals.outputs if several else 1)]
    return joined([*figures, _histogram(residuals), _table(residuals)])


def _table(residuals: Residuals) -> Markup:
    numbers = residuals.numbers()
    columns = ["", *(name for name, _ in numbers)]
    rows: list[tuple[str, ...]] = [
        (f"output {index}", *(shown(float(values[index])) for _, values in numbers))
        for index in range(min(residuals.outputs, _ROWS))
    ]
    caption = f"Errors (prediction less target) of {shown(residuals.rows)} rows"
    if residuals.outputs > _ROWS:
        caption += f"; the first {_ROWS} of {shown(residuals.outputs)} outputs"
    if residuals.left_out:
        caption += f"; {shown(residuals.left_out)} rows with NaN or infinity are left out"
    if residuals.outputs == 1:
        columns, rows = ["error", "value"], [(name, shown(float(values[0]))) for name, values in numbers]
    made = table(columns, rows, caption)
    return tag("div", tag("h3", "Errors"), made, class_="card")


def _scatter(residuals: Residuals, output: int | None) -> Markup:
    y, t = residuals.sample(output)
    whole = residuals.rows * (1 if output is not None else residuals.outputs)
    y, t = y[:_DRAWN], t[:_DRAWN]
    ends = [float(min(y.min(), t.min())), float(max(y.max(), t.max()))]
    if ends[0] == ends[1]:
        ends = [ends[0] - 0.5, ends[1] + 0.5]
    scale = {"domain": ends, "zero": False, "nice": False}
    axis = {"format": axis_format(max(map(abs, ends)))}
    x_axis = {"type": "quantitative", "title": "target", "scale": scale, "axis": axis}
    y_axis = {"type": "quantitative", "title": "prediction", "scale": scale, "axis": axis}
    diagonal = {
        "data": {"values": [{"t": ends[0], "y": ends[0]}, {"t": ends[1], "y": ends[1]}]},
        "mark": {"type": "line", "color": "var(--faint)", "strokeWidth": 1, "strokeDash": [4, 3]},
    }
    points = {
        "data": {"values": [{"t": float(a), "y": float(b)} for a, b in zip(t, y, strict=True)]},
        "mark": {"type": "point", "filled": True, "color": "var(--first)", "size": 14, "opacity": 0.55},
    }
    encoding = {"x": {"field": "t", **x_axis}, "y": {"field": "y", **y_axis}}
    spec: dict[str, Any] = {"layer": [{**layer, "encoding": encoding} for layer in (diagonal, points)]}
    title = "Prediction and target" if output is None else f"Prediction and target, output {output}"
    drawn_of = f" {len(y):,} of {whole:,} numbers are drawn." if len(y) < whole else ""
    said = f"Right predictions are on the dashed line.{drawn_of}"
    rows = [(shown(float(a)), shown(float(b))) for a, b in zip(t[:30], y[:30], strict=True)]
    numbers = details("Numbers", table(["target", "prediction"], rows, "The first ones that are drawn", numeric=0))
    caption = tag("figcaption", tag("h3", title), tag("p", said))
    return tag("figure", caption, drawn(spec, f"{title}. {said}", height=300), numbers, class_="card")


def _histogram(residuals: Residuals) -> Markup:
    y, t = residuals.sample()
    difference = y - t
    counts, edges = np.histogram(difference, bins=min(_BINS, max(1, len(difference) // 2)))
    values = [
        {"from": float(a), "to": float(b), "count": int(n), "said": f"{shown(float(a))} to {shown(float(b))}: {n}"}
        for n, a, b in zip(counts, edges[:-1], edges[1:], strict=True)
    ]
    spec = {
        "data": {"values": values},
        "mark": {"type": "bar", "color": "var(--first)", "binSpacing": 1},
        "encoding": {
            "x": {"field": "from", "bin": {"binned": True}, "type": "quantitative", "title": "prediction less target",
                  "axis": {"format": axis_format(float(np.abs(edges).max()))}},
            "x2": {"field": "to"},
            "y": {"field": "count", "type": "quantitative", "title": None},
            "description": {"field": "said"},
        },
    }  # fmt: skip
    middle, spread = np.median(difference), np.percentile(difference, [5, 95])
    whole = residuals.rows * residuals.outputs
    sampled = f" Of {shown(len(difference))} of {shown(whole)} numbers." if len(difference) < whole else ""
    said = f"Half are below {shown(float(middle))}; nine of ten are from {shown(float(spread[0]))} to "
    said += f"{shown(float(spread[1]))}.{sampled}"
    rows = [(shown(v["from"]), shown(v["to"]), shown(v["count"])) for v in values]
    numbers = details("Numbers", table(["from", "to", "times"], rows, "How often each difference is", numeric=0))
    caption = tag("figcaption", tag("h3", "Residuals"), tag("p", said))
    return tag("figure", caption, drawn(spec, f"Histogram of residuals. {said}", height=300), numbers, class_="card")

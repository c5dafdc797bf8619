"""What happened while training: a row for each epoch, and what is known of each step."""

from __future__ import annotations

import csv
import html
import io
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from onward.errors import OnwardError, UnknownNameError
from onward.runtime.files import write_bytes
from onward.trainer.figure import new_figure, save_figure

_VALIDATION = "val_"
_NOT_PLOTTED = ("epoch", "seconds", "rate")
_STEP_COLUMNS = ["step", "loss", "rate", "seconds", "gradient_norm", "memory"]


class Sample(NamedTuple):
    """What is not measured in every step, because it takes time.

    Attributes:
        step: the place of the step among all of the history.
        gradient_norm: that of all gradients together, before they are clipped; NaN where it is not known.
        memory: of the process, in bytes, after the step; NaN where it is not known.
    """

    step: int
    gradient_norm: float
    memory: float


class History:
    """A table of training: ``history["loss"]`` is a column, ``history[-1]`` a row, ``len(history)`` the epochs.

    Attributes:
        epochs: the rows; each has the number of its epoch and what was measured, by name.
        losses: the loss of each step.
        rates: its learning rate; NaN where there is none.
        seconds: the time that it took, with that of waiting for its data.
        samples: what is measured in some steps only.
        ends: how many steps had been made at the end of each epoch.
    """

    def __init__(self) -> None:
        self.epochs: list[dict[str, Any]] = []
        self.losses: list[float] = []
        self.rates: list[float] = []
        self.seconds: list[float] = []
        self.samples: list[Sample] = []
        self.ends: list[int] = []

    def add_step(self, loss: float, rate: float | None = None, seconds: float = math.nan) -> None:
        """Note one step."""
        self.losses.append(float(loss))
        self.rates.append(math.nan if rate is None else rate)
        self.seconds.append(seconds)

    def add_sample(self, gradient_norm: float | None, memory: float | None) -> None:
        """Note what was measured of the last step."""
        known = (math.nan if value is None else float(value) for value in (gradient_norm, memory))
        self.samples.append(Sample(len(self.losses) - 1, *known))

    def add_epoch(self, epoch: int, logs: Mapping[str, Any]) -> None:
        """Note what was measured in one epoch."""
        self.epochs.append({"epoch": int(epoch), **{name: _plain(value) for name, value in logs.items()}})
        self.ends.append(len(self.losses))

    @property
    def columns(self) -> list[str]:
        """The names of what was measured in any epoch."""
        return list(dict.fromkeys(name for row in self.epochs for name in row))

    def __len__(self) -> int:
        return len(self.epochs)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.epochs)

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __getitem__(self, key: str | int | slice) -> Any:
        """A column by its name (None where an epoch has no such number), a row by its place, or several rows."""
        if not isinstance(key, str):
            return self.epochs[key]
        if key not in self.columns:
            raise UnknownNameError(
                f"the history has no {key!r}; it has {', '.join(map(repr, self.columns)) or 'nothing'}"
            )
        return [row.get(key) for row in self.epochs]

    def best(self, name: str = "loss", *, higher: bool = False) -> dict[str, Any]:
        """The row with the lowest number in a column, or the highest."""
        known = [row for row in self.epochs if _is_number(row.get(name))]
        if not known:
            raise UnknownNameError(f"the history has no numbers called {name!r}")
        return max(known, key=lambda row: row[name]) if higher else min(known, key=lambda row: row[name])

    # Tables -------------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        if not self.epochs:
            return f"History: no epoch yet, {len(self.losses)} steps"
        columns = self.columns
        cells = [columns, *([_shown(row.get(name)) for name in columns] for row in self.epochs)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return "\n".join("  ".join(map(str.rjust, row, widths)) for row in cells)

    def _repr_html_(self) -> str:
        """The table in a notebook."""
        columns = self.columns
        head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
        body = "".join(
            f"<tr>{''.join(f'<td>{html.escape(_shown(row.get(name)))}</td>' for name in columns)}</tr>"
            for row in self.epochs
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def steps(self) -> list[dict[str, Any]]:
        """A row for each step: its loss, rate and seconds, and what was measured of some; None is not known."""
        samples = {sample.step: sample for sample in self.samples}
        unknown = Sample(-1, math.nan, math.nan)
        rows = []
        for step, (loss, rate, seconds) in enumerate(zip(self.losses, self.rates, self.seconds, strict=True)):
            _, norm, memory = samples.get(step, unknown)
            known = {"rate": rate, "seconds": seconds, "gradient_norm": norm, "memory": memory}
            rows.append({"step": step, "loss": loss, **{k: None if math.isnan(v) else v for k, v in known.items()}})
        return rows

    def to_pandas(self, *, steps: bool = False) -> Any:
        """The rows as a `pandas.DataFrame` by epoch, or by step."""
        try:
            import pandas
        except ImportError as error:
            raise OnwardError("to_pandas needs pandas, which is not installed: pip install pandas") from error
        if steps:
            return pandas.DataFrame(self.steps(), columns=_STEP_COLUMNS).set_index("step")
        return pandas.DataFrame(self.epochs, columns=self.columns or ["epoch"]).set_index("epoch")

    def to_csv(self, path: str | os.PathLike[str] | None = None, *, steps: bool = False) -> str | None:
        """Write the rows of the epochs, or of the steps, to a file, with all digits; without one, return them."""
        text = io.StringIO()
        writer = csv.DictWriter(text, _STEP_COLUMNS if steps else self.columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.steps() if steps else self.epochs)
        if path is None:
            return text.getvalue()
        write_bytes(path, text.getvalue().encode())
        return None

    # Plots --------------------------------------------------------------------------------------------------------

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """The loss, each metric and the learning rate over the epochs, with those of validation beside them.

        Returns the figure of matplotlib, and writes it to `path` if there is one.
        """
        panels = self._panels()
        if not panels:
            raise OnwardError("there is nothing to plot: no epoch has been trained yet")
        figure = new_figure(width=4.5 * len(panels))
        for index, (title, names) in enumerate(panels.items(), 1):
            axes = figure.add_subplot(1, len(panels), index)
            if title == "loss" and self.losses and len(self.losses) > len(self.epochs):
                self._plot_steps(axes)
            for name in names:
                label = "validation" if name.startswith(_VALIDATION) else "training"
                known = [(row["epoch"] + 1, row[name]) for row in self.epochs if _is_number(row.get(name))]
                axes.plot(*zip(*known, strict=True), marker=".", label=label)
            axes.set_title(title)
            axes.set_xlabel("epoch")
            if len(names) > 1:
                axes.legend()
        save_figure(figure, path)
        return figure

    def _panels(self) -> dict[str, list[str]]:
        """What is plotted: the loss first, then metrics, then the rate; each with what validation has of it."""
        numbers = [name for name in self.columns if any(_is_number(row.get(name)) for row in self.epochs)]
        bases = dict.fromkeys(name.removeprefix(_VALIDATION) for name in numbers if name not in _NOT_PLOTTED)
        panels = {base: [name for name in (base, f"{_VALIDATION}{base}") if name in numbers] for base in bases}
        return panels | ({"rate": ["rate"]} if "rate" in numbers else {})

    def _plot_steps(self, axes: Any) -> None:
        """The loss of each step, faintly, over the epochs that they belong to if all epochs are in the table."""
        first = self.epochs[0]["epoch"]
        count = self.epochs[-1]["epoch"] + 1 - first
        places = first + np.arange(1, len(self.losses) + 1) * (count / len(self.losses))
        axes.plot(places, self.losses, color="0.8", linewidth=0.8, zorder=0)

    # What a checkpoint keeps --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All of it, as plain values and arrays: what `load_state_dict` takes gives the same history again."""
        return {
            "epochs": [dict(row) for row in self.epochs],
            "losses": np.array(self.losses, np.float64),
            "rates": np.array(self.rates, np.float64),
            "seconds": np.array(self.seconds, np.float64),
            "samples": np.array(self.samples, np.float64).reshape(-1, 3),
            "ends": np.array(self.ends, np.int64),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become what `state_dict` returned."""
        self.epochs = [dict(row) for row in state["epochs"]]
        self.losses = [float(loss) for loss in state["losses"]]
        # Checkpoints of earlier versions have the losses only.
        unknown = [math.nan] * len(self.losses)
        self.rates = [float(rate) for rate in state.get("rates", unknown)]
        self.seconds = [float(seconds) for seconds in state.get("seconds", unknown)]
        self.samples = [Sample(int(step), float(norm), float(at)) for step, norm, at in state.get("samples", ())]
        self.ends = [int(end) for end in state.get("ends", ())]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, History):
            return NotImplemented
        same = all(map(_same_row, self.epochs, other.epochs)) and len(self) == len(other)
        columns = ((self.losses, other.losses), (self.rates, other.rates))
        return same and all(np.array_equal(mine, others, equal_nan=True) for mine, others in columns)

    __hash__ = None  # type: ignore[assignment]


def _same_row(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    def same(x: Any, y: Any) -> bool:
        return bool(x == y) or (isinstance(x, float) and isinstance(y, float) and math.isnan(x) and math.isnan(y))

    return row.keys() == other.keys() and all(same(row[name], other[name]) for name in row)


def _plain(value: Any) -> Any:
    """Numbers of numpy as those of Python, which JSON knows."""
    return value.item() if isinstance(value, (np.generic, np.ndarray)) and np.size(value) == 1 else value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)

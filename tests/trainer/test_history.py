"""A history is a table, keeps every digit, and plots itself."""

from __future__ import annotations

import json
import math
import sys

import numpy as np
import pytest

from onward import OnwardError
from onward.errors import UnknownNameError
from onward.trainer.history import History


@pytest.fixture
def history() -> History:
    made = History()
    for step in range(6):
        made.add_step(1 / (step + 3))
    made.add_epoch(0, {"loss": 1 / 3, "accuracy": np.float32(0.1), "val_loss": 0.5, "rate": 1e-3, "seconds": 2.0})
    made.add_epoch(
        1, {"loss": 0.25, "accuracy": 0.75, "val_loss": math.nan, "rate": 1e-4, "seconds": 1.0, "extra": "x"}
    )
    return made


def test_table(history: History) -> None:
    assert len(history) == 2
    assert history["loss"] == [1 / 3, 0.25]
    assert history["extra"] == [None, "x"]
    assert history[-1]["epoch"] == 1
    assert [row["epoch"] for row in history] == [0, 1]
    assert history[:1] == [history[0]]
    assert "val_loss" in history
    assert "loss2" not in history
    assert history.columns == ["epoch", "loss", "accuracy", "val_loss", "rate", "seconds", "extra"]
    assert history.best("accuracy", higher=True)["epoch"] == 1
    assert history.best("val_loss")["epoch"] == 0


def test_text(history: History) -> None:
    lines = repr(history).splitlines()
    assert lines[0].split() == history.columns
    assert lines[2].split() == ["1", "0.25", "0.75", "nan", "0.0001", "1", "x"]
    assert len({len(line) for line in lines}) == 1
    assert repr(History()) == "History: no epoch yet, 0 steps"
    assert "<td>0.3333</td>" in history._repr_html_()
    history.add_epoch(2, {"<b>": 1})
    assert "<th>&lt;b&gt;</th>" in history._repr_html_()


def test_pandas(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    frame = history.to_pandas()
    assert frame.index.tolist() == [0, 1]
    assert frame["loss"].tolist() == [1 / 3, 0.25]
    assert History().to_pandas().empty
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(OnwardError, match="to_pandas needs pandas"):
        history.to_pandas()


def test_csv_keeps_every_digit(history: History, tmp_path) -> None:
    path = tmp_path / "history.csv"
    history.to_csv(path)
    assert path.read_text("utf-8") == history.to_csv()
    rows = [line.split(",") for line in path.read_text("utf-8").splitlines()]
    assert rows[0] == history.columns
    assert float(rows[1][1]) == 1 / 3
    assert rows[1][-1] == ""


def test_state_is_exact(history: History) -> None:
    state = history.state_dict()
    text = json.dumps({key: x.tolist() if isinstance(x, np.ndarray) else x for key, x in state.items()})
    other = History()
    other.load_state_dict(json.loads(text))
    assert other == history
    assert other.losses == history.losses
    other.add_step(0)
    assert other != history
    other = History()
    other.load_state_dict(state)
    state["epochs"][0]["loss"] = 7
    assert other == history


def test_steps(history: History) -> None:
    history.add_step(0.5, rate=0.125, seconds=2.0)
    history.add_sample(3.0, 2**20)
    assert history.ends == [6, 6]
    assert history.steps()[6] == {
        "step": 6, "loss": 0.5, "rate": 0.125, "seconds": 2.0, "gradient_norm": 3.0, "memory": 2.0**20
    }  # fmt: skip
    first = {"step": 0, "loss": 1 / 3, "rate": None, "seconds": None, "gradient_norm": None, "memory": None}
    assert history.steps()[0] == first
    lines = (history.to_csv(steps=True) or "").splitlines()
    assert lines[0].split(",") == list(first)
    assert lines[-1] == "6,0.5,0.125,2.0,3.0,1048576.0"
    frame = pytest.importorskip("pandas") and history.to_pandas(steps=True)
    assert frame["gradient_norm"].tolist()[-1] == 3
    other = History()
    other.load_state_dict(history.state_dict())
    assert other.steps() == history.steps()
    assert other == history
    other.rates[-1] = 1.0
    assert other != history


def test_a_history_of_an_earlier_version(history: History) -> None:
    state = {"epochs": history.epochs, "losses": np.array(history.losses)}
    other = History()
    other.load_state_dict(state)
    assert other == history
    assert [row["rate"] for row in other.steps()] == [None] * 6
    other.add_step(1.0, 0.1, 0.1)
    assert other.steps()[-1]["rate"] == 0.1


def test_plot(history: History, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    figure = history.plot(tmp_path / "history.png")
    assert (tmp_path / "history.png").read_bytes().startswith(b"\x89PNG")
    assert [axes.get_title() for axes in figure.axes] == ["loss", "accuracy", "rate"]
    faint, training, validation = figure.axes[0].lines
    assert len(faint.get_xdata()) == 6
    assert list(training.get_xdata()) == [1, 2]
    assert list(validation.get_xdata()) == [1]  # NaN is not drawn
    assert history.plot() is not None
    history.plot(tmp_path / "history.svg")
    assert b"<svg" in (tmp_path / "history.svg").read_bytes()
    with pytest.raises(OnwardError, match="ends in no format of figures"):
        history.plot(tmp_path / "history.xyz")
    with pytest.raises(OnwardError, match="nothing to plot"):
        History().plot()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(OnwardError, match="plots need matplotlib"):
        history.plot()


def test_unknown_columns(history: History) -> None:
    with pytest.raises(UnknownNameError, match="the history has no 'losss'; it has 'epoch', 'loss'"):
        history["losss"]
    with pytest.raises(UnknownNameError, match="no numbers called 'extra'"):
        history.best("extra")

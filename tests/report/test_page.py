"""The page as a whole: what it is made of, and what it never does."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onward
from onward import OnwardError
from tests.report.reading import Element, read, styles
from tests.trainer.toys import classifier, labelled, regressor

EVIL = "<script>alert('1')</script>\"&\x00\u202e]]>"


def pictures(name: str = "w") -> onnx.ModelProto:
    """x `[N, 1, 8, 8]` to scores `[N, 3]`."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        net (float[N, 1, 8, 8] x) => (float[N, 3] scores) { f = Flatten(x)  scores = MatMul(f, w) }
    """)
    weight = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, name))
    model.graph.node[1].input[1] = name
    return model


def drawn(trainer: onward.Trainer, folder: Path, *data: Any, **options: Any) -> Element:
    path = trainer.report(folder / "report.html", *data, **options)
    assert path == folder / "report.html"
    text = path.read_bytes().decode("utf-8")
    assert text.startswith('<!doctype html>\n<html lang="en">')
    assert "\x00" not in text
    return read(text)


def section(page: Element, anchor: str) -> Element:
    return next(each for each in page.all("section") if each.get("aria-labelledby") == anchor)


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> tuple[Element, str]:
    """A report of a training in which everything that has a name has an evil one."""
    folder = tmp_path_factory.mktemp("evil")
    model = pictures(EVIL.replace("\x00", ""))
    model.graph.name = EVIL.replace("\x00", "")
    x = np.random.default_rng(0).random((60, 1, 8, 8)).astype(np.float32)
    y = x[:, 0, 0, :3].argmax(axis=1)
    metric = {f"{EVIL}accuracy": "accuracy"}
    trainer = onward.Trainer(model, "cross_entropy", learning_rate=0.05, metrics=metric)
    trainer.fit(x, y, epochs=4, batch_size=8, validation=(x[:20], y[:20]))
    page = drawn(trainer, folder, title=EVIL, classes=[EVIL, "b", f"{EVIL}c"], recipe=f"# {EVIL}\nloss = 1")
    return page, (folder / "report.html").read_text("utf-8")


def test_names_are_text(evil: tuple[Element, str]) -> None:
    page, text = evil
    assert "<script" not in text
    shown = EVIL.replace("\x00", "\ufffd")
    assert page.all("h1")[0].text == shown
    assert shown in section(page, "results").text
    assert shown in section(page, "examples").text
    assert EVIL.replace("\x00", "") in section(page, "parameters").text
    assert EVIL.replace("\x00", "") in section(page, "model").text
    assert page.all("pre")[0].text == f"# {shown}\nloss = 1"


def test_nothing_is_loaded_and_nothing_runs(evil: tuple[Element, str]) -> None:
    page, text = evil
    policy = next(meta.get("content") for meta in page.all("meta") if meta.get("http-equiv"))
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert not re.search(r"https?://(?!www\.w3\.org/)", text)
    assert "@import" not in styles(text)
    assert len(text) < 200_000


def test_light_and_dark_have_the_same_colours(evil: tuple[Element, str]) -> None:
    _, text = evil
    light, dark = (set(re.findall(r"(--[a-z-]+):", block)) for block in re.findall(r":root \{([^}]*)\}", styles(text)))
    used = set(re.findall(r"var\((--[a-z-]+)", text)) - {"--strength", "--share"}
    assert used <= light == dark
    assert not re.findall(r'(?:fill|stroke)="#', text)


def test_sections_of_a_classification(evil: tuple[Element, str]) -> None:
    page, _ = evil
    links = [link.get("href") for link in page.all("nav")[0].all("a")]
    assert links == ["#course", "#results", "#examples", "#parameters", "#model", "#recipe"]
    titles = [figure.all("h3")[0].text for figure in section(page, "course").all("figure")]
    assert titles[0] == "Loss"
    assert titles[2:] == ["Learning rate", "Gradient norm", "Milliseconds a step", "Memory in MB"]
    assert len(section(page, "examples").all("img")) == 16
    matrix = next(table for table in section(page, "results").all("table") if table.get("class") == "matrix")
    assert sum(int(cell.text) for cell in matrix.all("td") if cell.get("class").startswith("cell")) == 20


def test_a_regression(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(80, 4)).astype(np.float32)
    trainer = onward.Trainer(regressor(), "mse", "sgd", learning_rate=0.1, metrics=["r2"])
    y = x.sum(axis=1, keepdims=True)
    trainer.fit(x, y, epochs=2, batch_size=8, validation=(x[:30], y[:30]))
    page = drawn(trainer, tmp_path, features=["a", "b", "c", "<d>"])
    results = section(page, "results")
    assert [figure.all("h3")[0].text for figure in results.all("figure")] == ["Prediction and target", "Residuals"]
    errors = {row.children[0].text: row.children[1].text for row in results.all("table")[-1].all("tr")}
    expected = trainer.evaluate(x[:30], y[:30])
    assert errors["R²"] == f"{expected['r2']:.4g}"
    assert float(errors["root mean square"]) == pytest.approx(expected["loss"] ** 0.5, rel=1e-3)
    worst = section(page, "examples").all("table")[0].all("tr")[1]
    difference = np.square(trainer.predict(x[:30]) - y[:30])[:, 0]
    assert int(worst.children[0].text) == difference.argmax()
    assert "<d> " in worst.text


def test_without_validation_and_without_an_epoch(tmp_path: Path) -> None:
    trainer = onward.Trainer(classifier(), "cross_entropy")
    page = drawn(trainer, tmp_path)
    assert "No step has been made." in section(page, "course").text
    assert "There was no validation data" in section(page, "results").text
    assert "Nothing has moved." in section(page, "parameters").text
    trainer.fit(*labelled(20), epochs=1, batch_size=20)  # one epoch of one step
    page = drawn(trainer, tmp_path)
    assert "examples" not in [each.get("aria-labelledby") for each in page.all("section")]
    page = drawn(trainer, tmp_path, *labelled(7))
    assert "7 rows of the data that was given." in section(page, "results").text


def test_after_load(tmp_path: Path) -> None:
    trainer = onward.Trainer(classifier(normalised=True), "cross_entropy", frozen=["w1"], metrics=["accuracy"])
    trainer.fit(*labelled(40), epochs=3, batch_size=8)
    trainer.save(tmp_path / "checkpoint")
    other = onward.Trainer(classifier(normalised=True), "cross_entropy", frozen=["w1"], metrics=["accuracy"])
    other.load(tmp_path / "checkpoint")
    pages = [drawn(each, tmp_path, *labelled(10)) for each in (trainer, other)]
    course, moved = ([section(page, anchor).text for page in pages] for anchor in ("course", "parameters"))
    assert course[0] == course[1]
    assert moved[0] == moved[1]
    assert "statistic" in moved[0]
    layers = section(pages[0], "model").all("tbody")[0].all("tr")
    assert [chip.text for chip in layers[0].all("span") if "chip" in chip.get("class")] == ["trained", "frozen"]


def test_ten_thousand_steps_and_numbers_that_are_none(tmp_path: Path) -> None:
    trainer = onward.Trainer(classifier(), "cross_entropy")
    trainer.fit(*labelled(8), epochs=1, batch_size=8)
    history = trainer.history
    for step in range(10_000):
        history.add_step(float("nan") if step % 100 == 0 else 1 / (step + 1), 0.1, 1e-3)
        if step % 32 == 0:
            history.add_sample(float("inf"), None)
    history.add_epoch(1, {"loss": float("inf"), "val_loss": float("nan"), "rate": 0.1, "seconds": 1.0, "note": "x"})
    page = drawn(trainer, tmp_path)
    loss = section(page, "course").all("figure")[0]
    assert "A point is the mean of 51 steps" in loss.text
    assert "100 numbers (each step) are NaN, infinite or not known" in loss.text
    assert "half take at most 1" in section(page, "course").all("figure")[-2].text  # a millisecond, of steps
    assert (tmp_path / "report.html").stat().st_size < 250_000


def test_without_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trainer = onward.Trainer(classifier(), "cross_entropy")
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(OnwardError, match=r"pip install 'onward\[report\]'"):
        trainer.report(tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def test_the_recipe_trains_again(tmp_path: Path) -> None:
    onnx.save(classifier(), tmp_path / "model.onnx")
    trainer = onward.Trainer(tmp_path / "model.onnx", "cross_entropy", "sgd", learning_rate=0.25, frozen=["w1"])
    data, targets = labelled(40)
    trainer.fit(data, targets, epochs=2, batch_size=8, validation=0.25)
    trainer.report(tmp_path / "report.html")
    program = read((tmp_path / "report.html").read_text("utf-8")).all("pre")[0].text
    names: dict[str, Any] = {"data": data, "targets": targets}
    exec(program, names)
    assert names["trainer"].history.losses == trainer.history.losses

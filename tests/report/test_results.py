"""Results: what is counted, drawn and chosen, for every kind of model."""

from __future__ import annotations

import functools
import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import onward
from onward.metrics.decoding import Reading
from onward.metrics.decoding import read as read_scores
from onward.report.confusion import Confusion, confusion_block
from onward.report.examples import Example, Examples, examples_block
from onward.report.labels import Labels
from onward.report.picture import png
from onward.report.residuals import Residuals
from onward.report.results import Results
from onward.trainer.outcome import results_of
from tests.report.reading import Reader
from tests.trainer.toys import classifier, labelled


def parsed(markup: str) -> Any:
    reader = Reader()
    reader.feed(markup)
    assert not reader.wrong
    return reader.root


def model_of(text: str, **weights: tuple[int, ...]) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    random = np.random.default_rng(0)
    for name, shape in weights.items():
        array = random.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def results(trainer: onward.Trainer, *data: Any, classes: Any = ()) -> Results:
    source = trainer._supply.source(*data, batch_size=8, shuffle=False)
    return results_of(
        trainer._model,
        trainer._loss,
        trainer._comparisons,
        source,
        data="data",
        classes=dict(enumerate(classes)),
        features=(),
    )


def test_confusion_counts() -> None:
    confusion, random = Confusion({0: "a"}), np.random.default_rng(0)
    expected = np.zeros((5, 5), int)
    for rows in (7, 20, 1):
        scores, labels = random.normal(size=(rows, 5)), random.integers(0, 5, rows)
        np.add.at(expected, (labels, scores.argmax(1)), 1)
        confusion.add(read_scores(scores, labels, None, Reading()))
    assert [[confusion.count(i, j) for j in range(5)] for i in range(5)] == expected.tolist()
    found, predicted, right = confusion.sums()
    assert found.tolist() == expected.sum(1).tolist()
    assert predicted.tolist() == expected.sum(0).tolist()
    assert right.tolist() == expected.diagonal().tolist()
    most = confusion.confused(1)[0]
    wrong = expected - np.diag(expected.diagonal())
    assert most.times == wrong.max() == wrong[most.label, most.predicted]


@pytest.mark.parametrize("count", [2, 12, 40, 1000])
def test_any_number_of_classes(count: int) -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, count, 3000)
    scores = np.zeros((3000, count), np.float32)
    scores[np.arange(3000), np.where(random.random(3000) < 0.8, labels, 0)] = 1.0
    confusion = Confusion()
    confusion.add(read_scores(scores, labels, None, Reading()))
    block = confusion_block(confusion)
    page = parsed(block)
    matrices = [table for table in page.all("table") if table.get("class") == "matrix"]
    assert len(block) < 300_000
    if count == 40:
        assert len(page.all("svg")) == 1
        return
    rows = matrices[0].all("tbody")[0].all("tr")
    assert len(rows) == min(count, 12)
    sums = confusion.sums()[0]
    for row in rows:  # those that are not shown are in the last column
        cells = [int(cell.text.replace(",", "")) for cell in row.all("td")]
        assert sum(cells) == sums[int(row.all("th")[0].text)]
    assert ("others" in matrices[0].text) == (count == 1000)


def test_residuals_of_large_numbers() -> None:
    """The variance of numbers far from zero, in batches that are not alike."""
    random = np.random.default_rng(0)
    t = 1e7 + random.normal(size=(3000, 2))
    y = t + random.normal(size=(3000, 2)) * 0.5 + 0.25
    residuals = Residuals()
    for first in range(0, 3000, 700):
        residuals.add(y[first : first + 700], t[first : first + 700])
    residuals.add(np.array([[np.nan, 1.0]]), np.ones((1, 2)))
    numbers = dict(residuals.numbers())
    assert residuals.rows == 3000
    assert residuals.left_out == 1
    np.testing.assert_allclose(numbers["mean error"], (y - t).mean(0), rtol=1e-6)
    np.testing.assert_allclose(numbers["root mean square"], np.sqrt(((y - t) ** 2).mean(0)), rtol=1e-9)
    np.testing.assert_allclose(numbers["R²"], 1 - ((y - t) ** 2).mean(0) / t.var(0), rtol=1e-6)
    assert len(residuals.sample()[0]) <= 5000


def test_worst_and_best_of_batches() -> None:
    random = np.random.default_rng(0)
    losses = random.normal(size=100)
    losses[17] = np.nan
    examples = Examples("loss")
    for first in range(0, 100, 30):
        part = losses[first : first + 30]
        rows = examples.candidates(part)
        examples.add([Example(first + row, part[row], {}, "", "") for row in rows], len(part))
    order = np.argsort(np.where(np.isnan(losses), np.inf, losses))
    assert [example.row for example in examples.best] == order[:8].tolist()
    assert [example.row for example in examples.worst] == order[::-1][:8].tolist()


@pytest.mark.parametrize("rows", [1, 5, 12])
def test_few_rows_are_shown_once(rows: int) -> None:
    examples = Examples("loss")
    examples.add([Example(i, float(i), {"x": np.array([1.0])}, "a", "b") for i in range(rows)], rows)
    bodies = parsed(examples_block(examples)).all("tbody")
    shown = [int(row.all("th")[0].text) for body in bodies for row in body.all("tr")]
    assert sorted(shown) == list(range(rows))


def test_inputs_as_texts_waves_and_pictures() -> None:
    inputs: dict[str, np.ndarray] = {
        "text": np.array("<b>bold & quiet</b>", object),
        "tokens": np.arange(50),
        "flag": np.array(True),
        "half": np.ones(3, np.float16),
        "nothing": np.zeros((0, 4), np.float32),
    }
    examples = Examples("loss")
    examples.add([Example(3, float("inf"), inputs, "<is>", "<as>")], 1)
    text = parsed(examples_block(examples)).text
    for part in ("<b>bold & quiet</b>", "… (50 numbers)", "<is>", "<as>", "∞"):
        assert part in text
    for array, kind in (
        (np.random.default_rng(0).normal(size=(1, 16000)).astype(np.float32), "svg"),
        (np.full((3, 500, 300), np.nan, np.float32), "img"),
        (np.random.default_rng(0).integers(0, 255, (20, 30, 3)).astype(np.uint8), "img"),
        (np.zeros((28, 28), np.float32), "img"),
    ):
        examples = Examples("loss")
        examples.add([Example(0, 1.0, {"x": array}, "a", "b")], 1)
        page = parsed(examples_block(examples))
        assert len(page.all(kind)) == 1
        assert len(examples_block(examples)) < 60_000


def test_png() -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 255, (5, 7, 3)).astype(np.uint8)
    assert np.array_equal(np.asarray(image.open(io.BytesIO(png(pixels)))), pixels)


def test_a_classification_with_ignored_labels() -> None:
    loss = functools.partial(onward.losses.cross_entropy, ignore_index=2)
    trainer = onward.Trainer(classifier(), loss, metrics=["accuracy"])
    x, y = labelled(30)
    found = results(trainer, x, y, classes="abc")
    assert isinstance(found.outcome, Confusion)
    assert found.outcome.total == int((y != 2).sum())
    expected = trainer.evaluate(x, y)
    assert found.numbers == pytest.approx(expected, rel=1e-6)  # other batches are added up in another order
    right = sum(found.outcome.count(i, i) for i in range(3))
    assert right / found.outcome.total == pytest.approx(expected["accuracy"])


def test_losses_of_rows_are_those_of_the_loss() -> None:
    trainer = onward.Trainer(classifier(), "cross_entropy")
    x, y = labelled(30)
    found = results(trainer, x, y)
    assert found.examples is not None
    worst = found.examples.worst[0]
    each = [trainer.evaluate(x[i : i + 1], y[i : i + 1])["loss"] for i in range(30)]
    assert worst.row == int(np.argmax(each))
    assert worst.loss == pytest.approx(max(each), rel=1e-5)
    assert worst.target == str(y[worst.row])


def test_questions_of_yes_and_no() -> None:
    trainer = onward.Trainer(classifier(), "bce_with_logits")
    x, _ = labelled(20)
    y = (x[:, :3] > 0).astype(np.float32)
    found = results(trainer, x, y)
    assert isinstance(found.outcome, Labels)
    assert found.outcome.counts is not None
    said = trainer.predict(x) > 0
    assert found.outcome.counts[:, 0].tolist() == y.sum(0).tolist()
    assert found.outcome.counts[:, 1].tolist() == said.sum(0).tolist()
    assert found.outcome.counts[:, 2].tolist() == (said & (y > 0)).sum(0).tolist()


def test_words_in_rows() -> None:
    def tokens(predictions: Any) -> ir.Value:
        shape = ir.Shape(list(predictions[0].shape)[:-1])
        return ir.Value(name=None, type=ir.TensorType(ir.DataType.INT64), shape=shape)

    @onward.losses.targets(labels=tokens)
    def next_token(op: Any, prediction: Any, labels: Any) -> Any:
        return onward.losses.cross_entropy(op, op.Transpose(prediction, perm=[0, 2, 1]), labels)

    model = model_of("net (int64[N, T] ids) => (float[N, T, 9] logits) { logits = Gather(table, ids) }", table=(9, 9))
    trainer = onward.Trainer(model, next_token)
    ids = np.arange(60).reshape(10, 6) % 9
    found = results(trainer, ids, (ids + 1) % 9)
    assert isinstance(found.outcome, Confusion)
    assert found.outcome.total == 60
    assert found.examples is not None
    assert len(found.examples.worst) == 8
    assert found.examples.worst[0].target.count(",") == 5


def test_a_model_that_is_its_own_loss() -> None:
    model = model_of(
        "net (float[N, 4] x) => (float loss) { h = MatMul(x, w)  q = Mul(h, h)  loss = ReduceMean<keepdims=0>(q) }",
        w=(4, 2),
    )
    trainer = onward.Trainer(model, None)
    x, _ = labelled(20)
    found = results(trainer, x)
    assert found.outcome is None
    assert found.examples is not None
    each = np.square(x @ numpy_helper.to_array(model.graph.initializer[0])).mean(1)
    assert found.examples.worst[0].row == int(each.argmax())
    assert found.examples.worst[0].loss == pytest.approx(each.max(), rel=1e-5)


def test_a_fixed_batch_and_several_outputs(tmp_path: Path) -> None:
    model = model_of(
        """net (float[4, 3] x) => (float[4, 2] value, float[4, 5] other) {
            value = MatMul(x, v)  other = MatMul(x, o)
        }""",
        v=(3, 2),
        o=(3, 5),
    )
    trainer = onward.Trainer(model, "mse", loss_inputs=["other"])
    x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    y = np.zeros((8, 5), np.float32)
    trainer.fit(x, y, batch_size=4)
    found = results_of(
        trainer._model, trainer._loss, [], trainer._supply.source(x, y, batch_size=4, shuffle=False),
        data="data", classes={}, features=(),
    )  # fmt: skip
    assert isinstance(found.outcome, Residuals)
    assert found.outcome.outputs == 5
    assert "'other'" in found.compared
    trainer.report(tmp_path / "report.html", x, y, batch_size=4)


def test_numbers_that_are_none_do_not_end_a_report() -> None:
    trainer = onward.Trainer(classifier(), "cross_entropy")
    x, y = labelled(10)
    x[3] = np.nan
    found = results(trainer, x, y)
    assert np.isnan(found.numbers["loss"])
    assert found.examples is not None
    assert found.examples.worst[0].row == 3

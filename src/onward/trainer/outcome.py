"""What a trained model does on some data: what it confuses, how far it is off, and where it is worst and best."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onward.errors import OnwardError
from onward.losses import Loss
from onward.losses.base import loss_name, options_of
from onward.metrics import output_of
from onward.metrics.base import Output, known_output
from onward.metrics.decoding import Reading, Scores, log_probabilities, read
from onward.report.confusion import Confusion
from onward.report.examples import Example, Examples
from onward.report.figure import percent, shown
from onward.report.labels import Labels
from onward.report.residuals import Residuals
from onward.report.results import Results
from onward.trainer.batch import Batch
from onward.trainer.comparison import Comparison
from onward.trainer.data import Source
from onward.trainer.measuring import Measurement
from onward.trainer.prefetch import Prefetch
from onward.trainer.trained import TrainedModel

_ONE_BY_ONE = 200  # rows whose loss is found by running the model for each of them
_SHOWN = 6  # numbers of a prediction or a target


def results_or_why_not(
    model: TrainedModel,
    loss: Loss | None,
    comparisons: Sequence[Comparison],
    given: Source | None,
    validating: Source | None,
    classes: Mapping[int, str],
    features: Sequence[str],
    *,
    processes: int,
) -> Results | str:
    """What a report shows of the data that it was given, or of the validation data; or why it cannot."""
    tested = validating if given is None else given
    if tested is None:
        return "There was no validation data. trainer.report(path, data, targets) shows results of any data."
    if given is None and tested.once:
        return "The validation data was a generator, which is used up; trainer.report(path, data) shows results."
    title = "data that was given" if given is not None else "validation data"
    if given is None and processes > 1:
        title += f" that the first of {processes} processes has"
    return results_of(model, loss, comparisons, tested, data=title, classes=classes, features=features)


def results_of(
    model: TrainedModel,
    loss: Loss | None,
    comparisons: Sequence[Comparison],
    source: Source,
    *,
    data: str,
    classes: Mapping[int, str],
    features: Sequence[str],
) -> Results:
    """Everything about one pass over the data."""
    measurement = Measurement(model, loss, comparisons)
    judge = _judge(model, loss, comparisons, classes)
    results = Results(data, examples=Examples(judge.measure, features))
    with Prefetch(source.epoch(0), 2) as batches:
        for index, batch in enumerate(batches):
            outputs = measurement.evaluate(batch, strict=False)
            if not batch.rows:  # other processes have some
                continue
            numbers = _row_numbers(source, index, batch, results.rows)
            judge.take(batch, outputs, numbers, results)
            results.rows += batch.rows
    results.numbers, results.compared = measurement.results(), judge.compared
    results.outcome = judge.outcome
    results.notes += judge.notes
    return results


def class_names(given: Sequence[Any] | Mapping[int, Any]) -> dict[int, str]:
    """Names of classes by their numbers."""
    pairs = given.items() if isinstance(given, Mapping) else enumerate(given)
    return {int(number): str(name) for number, name in pairs}


def _row_numbers(source: Source, index: int, batch: Batch, before: int) -> list[int]:
    """Which rows of the data are in a batch."""
    if hasattr(source, "row_numbers"):
        return list(source.row_numbers(0, index, 1))
    return list(range(before, before + batch.rows))


def _judge(model: TrainedModel, loss: Loss | None, given: Sequence[Comparison], classes: Mapping[int, str]) -> _Judge:
    outputs, targets = model.comparable(), list(model.targets.values())
    if given:
        pair = given[0].output, given[0].target
    elif outputs and targets:
        pair = outputs[0], targets[0]
    else:
        return _Judge(model)
    name = "" if loss is None else loss_name(loss)
    ignored = None if loss is None else options_of(loss).get("ignore_index")
    return _Comparing(model, *pair, name, Reading(output_of(name, model.activation), ignored), classes)


class _Judge:
    """Says how bad rows are by the loss of each by itself."""

    def __init__(self, model: TrainedModel) -> None:
        self.model = model
        self.measure, self.compared = "loss", ""
        self.outcome: Confusion | Labels | Residuals | None = None
        self.notes: list[str] = []
        self._fixed = [field for field in model.fields if field.batch not in (None, 1)]

    def take(self, batch: Batch, outputs: Sequence[Any], numbers: Sequence[int], results: Results) -> None:
        """Take a batch with what the model returned for it."""
        self.take_one_by_one(batch, numbers, results)

    def take_one_by_one(self, batch: Batch, numbers: Sequence[int], results: Results) -> None:
        examples = results.examples
        left = _ONE_BY_ONE - results.rows
        if examples is None or left <= 0 or self._fixed:
            return
        if batch.rows > left:
            self.notes.append(f"The first {_ONE_BY_ONE} rows were run one by one for examples.")
        losses = np.array([self._loss(batch, row) for row in range(min(batch.rows, left))])
        found = [
            Example(numbers[row], float(losses[row]), inputs_of(self.model, batch, row), "", "")
            for row in examples.candidates(losses)
        ]
        examples.add(found, len(losses))

    def _loss(self, batch: Batch, row: int) -> float:
        with_rows = {field.name for field in self.model.fields if field.has_rows}
        feeds = {name: x[row : row + 1] if name in with_rows else x for name, x in batch.feeds.items()}
        return self.model.loss_of(self.model.evaluate(feeds, counts=False))


class _Comparing(_Judge):
    """Says how bad rows are by comparing a prediction with its target."""

    def __init__(
        self,
        model: TrainedModel,
        output: str,
        target: str,
        loss: str,
        reading: Reading,
        classes: Mapping[int, str],
    ) -> None:
        super().__init__(model)
        self._output, self._target, self._reading, self._classes = output, target, reading, classes
        self._known = known_output(loss)
        self.compared = f"The output {output!r} is compared with {target!r}."
        self._failed = False

    def take(self, batch: Batch, outputs: Sequence[Any], numbers: Sequence[int], results: Results) -> None:
        prediction, target = self.model.output_of(outputs, self._output), batch.feeds[self._target]
        examples = results.examples
        assert examples is not None
        if not self._failed:
            try:
                judged = self._compare(prediction, target, batch.rows)
            except OnwardError as error:  # they are not what they look like: sequences of labels, say
                self._failed, self.outcome, self.compared = True, None, ""
                self.notes.append(f"What is confused with what cannot be said: {error}.")
        if self._failed:
            self.take_one_by_one(batch, numbers, results)
            return
        losses, texts = judged
        examples.measure = self.measure
        rows = examples.candidates(losses)
        examples.add([
            Example(numbers[row], float(losses[row]), inputs_of(self.model, batch, row), *texts(row)) for row in rows
        ], batch.rows)  # fmt: skip

    def _compare(self, prediction: np.ndarray, target: np.ndarray, rows: int) -> tuple[np.ndarray, Any]:
        """How bad each row is, and a function from a row to texts of its target and its prediction."""
        if self._is_of_values(prediction, target):
            return self._compare_values(prediction, target, rows)
        scores = read(prediction, target, None, self._reading)
        if self.outcome is None:
            self.outcome = Labels(self._classes) if scores.is_multilabel else Confusion(self._classes)
        assert isinstance(self.outcome, (Labels, Confusion))
        self.outcome.add(scores)
        self.measure = "log loss"
        if len(scores.labels) == rows:
            each = -log_probabilities(scores, self._reading.output)
            losses = each.mean(axis=1) if each.ndim == 2 else each
            return losses, lambda row: self._texts(_part(scores, slice(row, row + 1)))
        parts = [self._row(prediction, target, row) for row in range(rows)]
        losses = np.array([_mean(-log_probabilities(part, self._reading.output)) for part in parts])
        return losses, lambda row: self._texts(parts[row])

    def _row(self, prediction: np.ndarray, target: np.ndarray, row: int) -> Scores:
        return read(prediction[row : row + 1], target[row : row + 1], None, self._reading)

    def _is_of_values(self, prediction: np.ndarray, target: np.ndarray) -> bool:
        """Whether numbers are compared, not classes."""
        if self._known is not None:
            return self._known is Output.VALUES
        whole = target.dtype.kind in "iub"
        return not whole and prediction.size == target.size and self.model.activation is None

    def _compare_values(self, prediction: np.ndarray, target: np.ndarray, rows: int) -> tuple[np.ndarray, Any]:
        if prediction.size != target.size or prediction.shape[:1] != target.shape[:1] or len(prediction) != rows:
            raise OnwardError(
                f"the prediction has shape {list(prediction.shape)}, its target {list(target.shape)}, for {rows} rows"
            )
        y, t = (x.reshape(rows, -1) for x in (prediction, target))
        if self.outcome is None:
            self.outcome = Residuals()
        assert isinstance(self.outcome, Residuals)
        self.outcome.add(y, t)
        self.measure = "squared error"
        losses = np.square(y.astype(np.float64) - t.astype(np.float64)).mean(axis=1)
        return losses, lambda row: (_listed(t[row]), _listed(y[row]))

    def _texts(self, scores: Scores) -> tuple[str, str]:
        """What a row is, and what it was taken for."""
        if scores.is_multilabel:
            both = (np.flatnonzero(x.reshape(-1) == 1) for x in (scores.labels, scores.predicted))
            is_so, said = (", ".join(map(self._name, found[:_SHOWN])) or "none" for found in both)
            return is_so, said
        if len(scores.labels) != 1:
            is_so, said = (_cut([self._name(x) for x in y[: _SHOWN + 1]]) for y in (scores.labels, scores.predicted))
            return is_so, said
        guess = scores.predicted
        probability = math.exp(log_probabilities(replace(scores, labels=guess), self._reading.output)[0])
        return self._name(scores.labels[0]), f"{self._name(guess[0])} ({percent(probability)})"

    def _name(self, label: Any) -> str:
        return self._classes.get(int(label), str(label))


def _part(scores: Scores, rows: slice) -> Scores:
    return replace(scores, scores=scores.scores[rows], labels=scores.labels[rows], weight=None)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else math.nan


def _listed(values: np.ndarray) -> str:
    return _cut([shown(float(value)) for value in values[: _SHOWN + 1]])


def _cut(texts: Sequence[str]) -> str:
    return ", ".join(texts[:_SHOWN]) + (", …" if len(texts) > _SHOWN else "")


def inputs_of(model: TrainedModel, batch: Batch, row: int) -> dict[str, np.ndarray]:
    """What the model was fed for one row."""
    return dict(_inputs(model, batch, row))


def _inputs(model: TrainedModel, batch: Batch, row: int) -> Iterator[tuple[str, np.ndarray]]:
    for field in model.fields:
        if field.name in model.inputs and field.has_rows:
            yield field.name, np.array(batch.feeds[field.name][row])

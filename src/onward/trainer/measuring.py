"""The loss and the metrics of data that comes in batches: those of all rows together, not means of batches."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onward.callbacks import Callback, Run
from onward.errors import OnwardError, PeerError
from onward.losses import Loss, share
from onward.metrics import Metric
from onward.trainer.batch import Batch
from onward.trainer.comparison import Comparison
from onward.trainer.rate import Rates
from onward.trainer.replica import keep_equal
from onward.trainer.team import Team
from onward.trainer.trained import TrainedModel


class Measurement:
    """Adds up what is known about one pass over some data.

    Args:
        loss: the loss that the model is trained with, without weights of rows; None where the model has its own.
        comparisons: metrics, of which it uses copies.
    """

    def __init__(self, model: TrainedModel, loss: Loss | None, comparisons: Sequence[Comparison] = ()) -> None:
        self._model, self._loss = model, loss
        self._comparisons = [each._replace(metric=copy.copy(each.metric)) for each in comparisons]
        self.start()

    @property
    def _metrics(self) -> list[Metric]:
        return [each.metric for each in self._comparisons]

    def fresh(self) -> Measurement:
        """Another one of the same kind, which has seen nothing."""
        return Measurement(self._model, self._loss, self._comparisons)

    def start(self) -> None:
        """Forget everything."""
        self._total = self._weight = 0.0
        self._is_sum = False
        self.rows = 0
        for metric in self._metrics:
            metric.start()

    def share(self, batch: Batch) -> float | None:
        """How much a batch counts; None where batches add up."""
        targets = {name: batch.feeds[fed] for name, fed in self._model.targets.items()}
        return share(self._loss, targets, batch.rows)

    def evaluate(self, batch: Batch, *, strict: bool = True) -> list[Any]:
        """Run the model on one batch, take its loss and its outputs, and return them.

        A loss that is not finite is an error, unless this is not `strict`.
        """
        if not batch.rows:  # other processes have some
            return []
        self.rows += batch.rows
        counts = self.share(batch)
        outputs = self._model.evaluate(batch.feeds, counts=strict and counts != 0)
        if counts is None:
            self._is_sum = True
            self._total += self._model.loss_of(outputs)
        elif counts:  # the mean of nothing is no number
            self._total += self._model.loss_of(outputs) * counts
            self._weight += counts
        self.update_metrics(batch, outputs)
        return outputs

    def update_metrics(self, batch: Batch, outputs: Sequence[Any]) -> None:
        for metric, output, target in self._comparisons:
            metric.update(self._model.output_of(outputs, output), batch.feeds[target], batch.weight)

    def results(self) -> dict[str, float]:
        """The loss and all metrics."""
        mean = self._total / self._weight if self._weight else float("nan")
        return {"loss": self._total if self._is_sum else mean, **self.metric_results()}

    def metric_results(self) -> dict[str, float]:
        return {metric.name: metric.result() for metric in self._metrics}

    def state_dict(self) -> dict[str, Any]:
        """What the metrics have seen so far: whatever differs from a metric that has seen nothing."""
        states = {}
        for metric in self._metrics:
            fresh = copy.copy(metric)
            fresh.start()
            states[metric.name] = {key: x for key, x in vars(metric).items() if x is not vars(fresh).get(key)}
        return states

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for metric in self._metrics:
            metric.start()
            vars(metric).update(state.get(metric.name, {}))

    def merge(self, states: Sequence[Mapping[str, Any]], team: Team) -> None:
        """Let the metrics take what those of all processes have seen: parts of the same batches."""
        for rank, state in enumerate(states):
            if state.keys() != states[0].keys():
                first, other = list(states[0]) or "none", list(state) or "none"
                raise team.agreed(
                    PeerError(
                        f"the metrics differ: {first} in rank 0, {other} in rank {rank}. Measure the same in all "
                        "processes: a metric is put together from what each of them has seen"
                    )
                )
        if not self._comparisons:
            return
        parts = []
        for state in states:
            parts.append(self.fresh())
            parts[-1].load_state_dict(state)
        for index, metric in enumerate(self._metrics):
            metric.merge([part._metrics[index] for part in parts])

    def gathered(self, team: Team) -> Measurement:
        """What all processes have measured together."""
        if team.size == 1:
            return self
        whole = self.fresh()
        mine = (self.rows, self._total, self._weight, self._is_sum, self.state_dict())
        told = team.meet("the end of an evaluation", mine)
        for rows, total, weight, is_sum, _ in told:
            whole.rows += rows
            whole._total += total
            whole._weight += weight
            whole._is_sum = whole._is_sum or is_sum
        whole.merge([metrics for *_, metrics in told], team)
        return whole


class TrainingMetrics(Callback):
    """Metrics of the training itself, and the schedule that waits for what they say."""

    def __init__(self, model: TrainedModel, measurement: Measurement, rates: Rates, team: Team) -> None:
        self._model, self._measurement, self._rates, self._team = model, measurement, rates, team

    def on_epoch_begin(self, run: Run) -> None:
        if run.batch == 0:
            self._measurement.start()

    def on_epoch_end(self, run: Run) -> None:
        self._model.require_finite()  # the loss of the last step was computed before its update
        keep_equal(self._model, self._team)
        validated = {name: run.logs.pop(name) for name in list(run.logs) if name != "loss"}
        run.logs.update({**self._measurement.metric_results(), **validated})
        self._rates.observe(run.logs)

    def state_dict(self) -> dict[str, Any]:
        return {"metrics": self._measurement.state_dict(), "rates": self._rates.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._measurement.load_state_dict(state["metrics"])
        self._rates.load_state_dict(state["rates"])


class Collection:
    """Predictions of batches, put together."""

    def __init__(self, rows: int | None) -> None:
        self._rows, self._filled = rows, 0
        self._whole: dict[str, Any] = {}
        self._parts: dict[str, list[Any]] = {}

    def add(self, outputs: Mapping[str, Any], rows: int) -> None:
        """Take the outputs of one batch."""
        for name, value in outputs.items():
            if self._filled and isinstance(value, np.ndarray) and (value.ndim == 0 or len(value) != rows):
                raise OnwardError(
                    f"the output {name!r} has shape {list(value.shape)} for a batch of {rows} rows, so it has not one "
                    "for each of them, and batches cannot be put together: predict all rows at once, with a larger "
                    "batch_size"
                )
            if self._filled == 0 and self._rows not in (None, rows) and _has_rows(value, rows):
                self._whole[name] = np.empty((self._rows, *value.shape[1:]), value.dtype)
            whole = self._whole.get(name)
            if whole is not None and value.shape[1:] == whole.shape[1:] and len(value) == rows:
                whole[self._filled : self._filled + rows] = value
            else:
                if whole is not None:  # rows of another shape than those before: they stay apart
                    self._parts[name] = [whole[: self._filled]]
                    del self._whole[name]
                self._parts.setdefault(name, []).append(value)
        self._filled += rows

    def result(self) -> dict[str, Any]:
        """Each output for all rows."""
        return {**self._whole, **{name: _joined(name, parts) for name, parts in self._parts.items()}}


def _has_rows(value: Any, rows: int) -> bool:
    return isinstance(value, np.ndarray) and value.ndim > 0 and len(value) == rows and value.dtype.kind != "O"


def _joined(name: str, parts: Sequence[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, list) for part in parts):
        return [item for part in parts for item in part]
    shapes = {part.shape[1:] for part in parts}
    if len(shapes) > 1 or () in {part.shape for part in parts}:
        raise OnwardError(
            f"the output {name!r} has rows of different shapes in different batches ({sorted(shapes)}), so it is no "
            "array; predict batch by batch"
        )
    return np.concatenate(parts)

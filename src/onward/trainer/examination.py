"""What a model does with data, without training: its loss and its metrics, and what it predicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onward.losses import Loss
from onward.trainer.comparison import Comparison
from onward.trainer.data import Source, source
from onward.trainer.measuring import Collection, Measurement
from onward.trainer.prefetch import Prefetch
from onward.trainer.team import Team
from onward.trainer.trained import TrainedModel


class Examination:
    """Runs a model over whole data sets.

    Args:
        loss: that the model is trained with, without weights of rows; None where the model has its own.
    """

    def __init__(self, model: TrainedModel, loss: Loss | None, team: Team) -> None:
        self._model, self._loss, self._team = model, loss, team

    def measured(self, data: Source, comparisons: Sequence[Comparison], prefetch: int = 2) -> Measurement:
        """The loss and the metrics of all rows, of all processes together."""
        measurement = Measurement(self._model, self._loss, comparisons)
        with Prefetch(data.epoch(0), prefetch) as batches:
            for batch in batches:
                measurement.evaluate(batch)
        return measurement.gathered(self._team)

    def predicted(self, data: Any, batch_size: int, prefetch: int) -> Any:
        """What the model returns: an array for one output, a dict by name for several."""
        needed = self._model.prediction_inputs()
        fields = [field for field in self._model.fields if field.name in needed or field.is_target]
        made = source(data, inputs=fields, batch_size=batch_size, shuffle=False, needs_targets=False)
        collection = Collection(made.rows)
        with Prefetch(made.epoch(0), prefetch) as batches:
            for batch in batches:
                collection.add(self._model.predict(batch.feeds), batch.rows)
        results = collection.result()
        return next(iter(results.values())) if len(results) == 1 else results

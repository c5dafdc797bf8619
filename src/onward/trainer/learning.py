"""One step, of one process or of several together: it is that of one process on all of their batches.

Each process runs forward and backward on its own batches and weighs its gradient by what its mean was divided by, among
all: rows, elements, labels that count, weights. Sums of these are the gradient of the mean over everything. Nothing has
changed until all processes know that none has failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from onward.errors import NonFiniteError, PeerError
from onward.runtime.tensors import FlatTensors
from onward.trainer.batch import Batch
from onward.trainer.measuring import Measurement
from onward.trainer.team import Team
from onward.trainer.trained import TrainedModel


class Contribution(NamedTuple):
    """What one process adds to a step."""

    rate: float
    loss: float  # the mean over its batches, or their sum
    share: float | None  # what that mean was divided by; None for a sum
    rows: int  # that it has run
    passes: int  # that have drawn random numbers


class Step:
    """Makes steps of a model in a team.

    Args:
        weighted: whether rows have weights; then a step in which nothing counts is one with a gradient of 0.
    """

    def __init__(self, model: TrainedModel, team: Team, *, weighted: bool) -> None:
        self._model, self._team, self._weighted = model, team, weighted

    def __call__(self, batches: Sequence[Batch], rate: float, measurement: Measurement) -> tuple[float, float | None]:
        """One update from these batches and those of the other processes.

        Returns the loss of all of them, and its weight in the mean of an epoch, which is None for a sum. Where it
        raises, nothing has changed.
        """
        counted, shares = self._counted(batches, measurement)
        total = sum(share or 0.0 for share in shares)
        weights = [1.0 if share is None or not total else share / total for share in shares]
        model, before = self._model, self._model.state.random.passes
        seen = measurement if self._team.size == 1 else measurement.fresh()
        with model.attempt():
            results = model.run([batch.feeds for batch in counted], weights)
            loss = 0.0
            for batch, outputs, weight in zip(counted, results, weights, strict=True):
                loss += model.loss_of(outputs) * weight
                seen.update_metrics(batch, outputs)
            share, rows = None if None in shares else total, sum(batch.rows for batch in counted)
            mine = Contribution(rate, loss, share, rows, model.state.random.passes - before)
            loss, whole = self._joined(mine, seen, measurement)
        model.step(rate)
        return loss, whole

    def _joined(self, mine: Contribution, seen: Measurement, measurement: Measurement) -> tuple[float, float | None]:
        """The loss and the gradient of all processes, and in `measurement` what they have seen."""
        if self._team.size == 1:
            self._weights([mine])
            return mine.loss, mine.share
        told = self._team.meet("the end of a pass", (tuple(mine), seen.state_dict()))
        given = [Contribution(*each) for each, _ in told]
        weights = self._weights(given)
        self._team.strategy.add_up(self._model.module.gradients, weights[self._team.rank])
        self._average_statistics([each.rows for each in given])
        # All have drawn as often, so that what one of them saves tells where all of them are.
        self._model.state.random.passes += max(each.passes for each in given) - mine.passes
        measurement.merge([metrics for _, metrics in told], self._team)
        loss = sum(each.loss * weight for each, weight in zip(given, weights, strict=True))
        is_sum = any(each.share is None for each in given)
        return loss, None if is_sum else sum(each.share or 0.0 for each in given)

    def _counted(self, batches: Sequence[Batch], measurement: Measurement) -> tuple[list[Batch], list[float | None]]:
        """The batches that count, and how much: of labels that are all to be ignored there is no loss."""
        held = [batch for batch in batches if batch.rows]
        shares = [measurement.share(batch) for batch in held]
        if self._weighted and not any(shares):
            return held, shares
        pairs = [(batch, share) for batch, share in zip(held, shares, strict=True) if share != 0.0]
        return [batch for batch, _ in pairs], [share for _, share in pairs]

    def _weights(self, given: Sequence[Contribution]) -> list[float]:
        """How much the gradient of each process counts."""
        if any(each.rate != given[0].rate for each in given):
            rates = ", ".join(f"{each.rate:g} in rank {rank}" for rank, each in enumerate(given))
            raise self._team.agreed(PeerError(f"the learning rates differ: {rates}. Set them in all processes"))
        total = sum(each.share or 0.0 for each in given)
        if any(each.share is None for each in given) or (self._weighted and not total):
            return [float(each.rows > 0) for each in given]
        if not total:
            raise self._team.agreed(
                NonFiniteError("no label counts, because all are to be ignored, and the mean of nothing is no number.")
            )
        return [(each.share or 0.0) / total for each in given]

    def _average_statistics(self, rows: Sequence[int]) -> None:
        """Let running statistics be the means over all processes, each counted by its rows."""
        statistics = self._model.module.statistics()
        if not statistics or not sum(rows):
            return
        wide = FlatTensors.holding({name: array.astype("float64") for name, array in statistics.items()})
        self._team.strategy.add_up(wide, rows[self._team.rank] / sum(rows))
        self._model.module.set_statistics({name: wide[name].astype(statistics[name].dtype) for name in statistics})

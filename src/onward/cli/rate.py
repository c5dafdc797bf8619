"""`--lr auto`: a sweep over rates says where the loss explodes; short trials below that say which rate serves best.

Batches differ by more than a few steps of training change. All losses are therefore compared with those of the same
batches before training: what counts is how far a rate has brought them down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from onward.cli.preparation import Part
from onward.trainer.finder import RateSearch
from onward.trainer.trainer import Trainer

_FACTOR = math.sqrt(10)
_TRIALS = 5
_MARGIN = 0.01  # a larger rate has to be better by this share of what was gained, or the smaller one is taken
_NOTHING = 1e-30  # a rate that changes no weight
_LOWEST, _HIGHEST, _BEYOND = 1e-6, 10.0, 1e5  # the last for models whose outputs are far off, such as prices
_SMOOTHING = 0.7  # of the sweep: how much the steps before count


@dataclass(frozen=True)
class Found:
    """A rate, and how many steps were tried for it; None if the loss fell at none."""

    rate: float | None
    steps: int


@dataclass
class _Trials:
    """Short trainings from the same weights on the same batches."""

    trainer: Trainer
    part: Part
    batch_size: int
    steps: int
    taken: int = 0
    untrained: list[float] = field(default_factory=list)

    def sweep(self, lowest: float, highest: float) -> RateSearch:
        found = self.trainer.find_learning_rate(
            *self.part, lowest=lowest, highest=highest, steps=max(25, self.steps), batch_size=self.batch_size
        )
        self.taken += len(found.rates)
        return found

    def gains(self, losses: Sequence[float]) -> list[float]:
        """How far each loss is below that of the same batch before training."""
        if not self.untrained:
            self.untrained = self.sweep(_NOTHING, math.nextafter(_NOTHING, 1)).losses
        return [before - after for before, after in zip(self.untrained, losses, strict=False)]

    def gain(self, rate: float) -> float:
        """What so many steps at a rate bring, by the second half of them."""
        trial = self.trainer.find_learning_rate(
            *self.part, lowest=rate, highest=math.nextafter(rate, math.inf), steps=self.steps,
            batch_size=self.batch_size, divergence=math.inf,
        )  # fmt: skip
        self.taken += len(trial.rates)
        if len(trial.losses) < self.steps or not all(map(math.isfinite, trial.losses)):
            return -math.inf
        return float(np.mean(self.gains(trial.losses)[self.steps // 2 :]))

    def top(self) -> float | None:
        """The rate at which a sweep had brought the loss down most; None if it never had."""
        found = self.sweep(_LOWEST, _HIGHEST)
        best = self._most(found)
        if best is not None and best >= found.rates[-1] >= _HIGHEST / 2:
            further = self._most(self.sweep(best, _BEYOND))
            return best if further is None else further
        return best

    def _most(self, found: RateSearch) -> float | None:
        total = weight = 0.0
        smoothed: list[float] = []
        for gain in self.gains(found.losses):
            total, weight = _SMOOTHING * total + gain, _SMOOTHING * weight + 1
            smoothed.append(total / weight)
        if not smoothed or max(smoothed) <= 0:
            return None
        return found.rates[int(np.argmax(smoothed))]


def search(trainer: Trainer, part: Part, *, batch_size: int, total: int) -> Found:
    """A learning rate for a training of `total` steps; the trainer is afterwards as it was.

    From a tenth of the rate at which the sweep had its lowest loss, trials go down, or up, for as long as that helps.
    """
    trials = _Trials(trainer, part, batch_size, min(50, max(10, total // 10)))
    top, gains = trials.top(), dict[int, float]()
    if top is None:
        return Found(None, trials.taken)

    def gain(power: int) -> float:
        if power not in gains:
            gains[power] = trials.gain(top * _FACTOR**power)
        return gains[power]

    power = -2
    while len(gains) < _TRIALS and gain(power - 1) > gain(power):
        power -= 1
    if power == -2:
        while len(gains) < _TRIALS and power < 0 and gain(power + 1) > gain(power) + _MARGIN * abs(gain(power)):
            power += 1
    if not gains[power] > 0:
        return Found(None, trials.taken)
    return Found(float(f"{top * _FACTOR**power:.2g}"), trials.taken)

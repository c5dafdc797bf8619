"""`--lr auto`: a sweep over rates says where the loss explodes; short trials below that say which rate serves best."""

from __future__ import annotations

import math
from dataclasses import dataclass

from onward.cli.preparation import Part
from onward.trainer.trainer import Trainer

_FACTOR = math.sqrt(10)
_TRIALS = 5
_MARGIN = 0.01  # a larger rate has to be better by this share of what was gained, or the smaller one is taken


@dataclass(frozen=True)
class Found:
    """A rate, and how many steps were tried for it; None if the loss fell at none."""

    rate: float | None
    steps: int


def search(trainer: Trainer, part: Part, *, batch_size: int, total: int) -> Found:
    """A learning rate for a training of `total` steps; the trainer is afterwards as it was.

    From a tenth of the rate at which the sweep had its lowest loss, trials go down, or up, for as long as that helps.
    """
    steps = min(50, max(10, total // 10))
    sweep = trainer.find_learning_rate(*part, lowest=1e-6, highest=10.0, steps=max(25, steps), batch_size=batch_size)
    tried = len(sweep.rates)
    if sweep.best is None:
        return Found(None, tried)
    top, losses = sweep.best, dict[int, float]()

    def loss(power: int) -> float:
        if power not in losses:
            rate = top * _FACTOR**power
            trial = trainer.find_learning_rate(
                *part, lowest=rate, highest=math.nextafter(rate, math.inf), steps=steps, batch_size=batch_size
            )
            ended = len(trial.losses) == steps and all(map(math.isfinite, trial.losses))
            losses[power] = trial.smoothed[-1] if ended else math.inf
        return losses[power]

    power = -2
    while len(losses) < _TRIALS and loss(power - 1) < loss(power):
        power -= 1
    if power == -2:
        while len(losses) < _TRIALS and power < 0 and _is_better(loss(power + 1), loss(power), sweep.losses[0]):
            power += 1
    tried += steps * len(losses)
    if not math.isfinite(losses[power]) or losses[power] >= sweep.losses[0]:
        return Found(None, tried)
    return Found(float(f"{top * _FACTOR**power:.2g}"), tried)


def _is_better(loss: float, than: float, first: float) -> bool:
    return loss < than - _MARGIN * abs(first - than)

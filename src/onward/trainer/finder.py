"""Find a learning rate: raise it from step to step, and see where the loss falls fastest and where it explodes.

Smith, "Cyclical learning rates for training neural networks", 2017.
"""

from __future__ import annotations

import dataclasses
import math
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.callbacks import Callback, Run
from onward.errors import NonFiniteError, NonFiniteWarning, OnwardError
from onward.runtime.state import RandomState, State
from onward.runtime.tensors import FlatTensors
from onward.trainer.data import Batch, Source
from onward.trainer.figure import new_figure, save_figure
from onward.trainer.loop import Loop
from onward.trainer.team import Team
from onward.trainer.trained import TrainedModel

# From batches and a rate to the loss, and its weight in the mean of an epoch.
Learn = Callable[[Sequence[Batch], float], tuple[float, float | None]]


@dataclass(frozen=True)
class RateSearch:
    """What `Trainer.find_learning_rate` found.

    Attributes:
        rates: the learning rate of each step.
        losses: its loss.
        smoothed: the losses, each with a share of those before it.
        ended: why there are no more steps.
    """

    rates: list[float]
    losses: list[float]
    smoothed: list[float]
    ended: str

    @property
    def best(self) -> float | None:
        """The rate at which the loss was lowest: that is where it is about to grow."""
        return self.rates[int(np.argmin(self.smoothed))] if self.rates else None

    @property
    def suggestion(self) -> float | None:
        """The rate at which the loss falls fastest; None if it does not fall at all."""
        end = int(np.argmin(self.smoothed)) + 1 if self.rates else 0
        if end < 2:
            return None
        # Over a few steps to each side, since single steps are noise.
        reach = max(1, len(self.rates) // 20)
        logs, y = np.log(self.rates), np.asarray(self.smoothed)
        left = np.maximum(np.arange(end) - reach, 0)
        right = np.minimum(np.arange(end) + reach, end - 1)
        slopes = (y[right] - y[left]) / (logs[right] - logs[left])
        steepest = int(np.argmin(slopes))
        return self.rates[steepest] if slopes[steepest] < 0 else None

    @property
    def tenth_of_best(self) -> float | None:
        """A tenth of the rate at which the loss was lowest: another rule that is often used."""
        return None if self.best is None else self.best / 10

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """The loss over the rate; returns the figure of matplotlib, and writes it to `path` if there is one."""
        if not self.rates:
            raise OnwardError(f"there is nothing to plot: {self.ended}")
        figure = new_figure(width=5.5)
        axes = figure.add_subplot()
        axes.plot(self.rates, self.losses, color="0.8", label="loss")
        axes.plot(self.rates, self.smoothed, label="smoothed")
        if self.suggestion is not None:
            axes.axvline(self.suggestion, color="C1", linestyle="--", label=f"suggestion {self.suggestion:.2g}")
        axes.set_xscale("log")
        # What explodes would hide the rest.
        low, high = min(self.smoothed), max(self.smoothed[0], min(self.smoothed))
        margin = (high - low or abs(high) or 1) * 0.5
        axes.set_ylim(low - margin, high + margin)
        axes.set_xlabel("learning rate")
        axes.set_ylabel("loss")
        axes.legend()
        save_figure(figure, path)
        return figure

    def __repr__(self) -> str:
        said = "none, the loss did not fall" if self.suggestion is None else f"{self.suggestion:.3g}"
        return f"RateSearch(suggestion={said}, {len(self.rates)} steps; {self.ended})"


def find_rate(
    model: TrainedModel,
    learn: Learn,
    source: Source,
    *,
    lowest: float,
    highest: float,
    steps: int,
    smoothing: float,
    divergence: float,
    accumulate: int,
    prefetch: int,
    team: Team,
) -> RateSearch:
    """Train with a rising rate, and put the model back as it was, bit for bit; `learn` makes one update."""
    _check(lowest, highest, steps, smoothing, divergence)
    if source.once:
        raise OnwardError(
            "a generator yields its batches once, and looking for a rate would use them up; give a function"
        )
    probe = _Probe(learn, np.geomspace(lowest, highest, steps).tolist())
    watch = _Watch(steps, smoothing, divergence)
    before = _copied(model.state)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NonFiniteWarning)  # which is what is looked for
            Loop(
                probe, source, epochs=steps, callbacks=[watch], accumulate=accumulate, prefetch=prefetch, team=team
            ).run()
    except NonFiniteError:
        watch.ended = f"the loss was not finite at a rate of {probe.rate:.3g}"
    finally:
        model.take(before)
    count = len(watch.losses)
    return RateSearch(probe.rates[:count], watch.losses, watch.smoothed, watch.ended)


def _check(lowest: float, highest: float, steps: int, smoothing: float, divergence: float) -> None:
    if not 0 < lowest < highest < math.inf:
        raise OnwardError(f"learning rates are searched from `lowest` up to `highest`, not from {lowest} to {highest}")
    if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 2:
        raise OnwardError(f"`steps` is a number of steps, at least 2, not {steps!r}")
    if not 0 <= smoothing < 1:
        raise OnwardError(f"`smoothing` is the share of the steps before, from 0 to below 1, not {smoothing}")
    if not divergence > 1:
        raise OnwardError(f"`divergence` says how many times its lowest the loss may be, more than 1, not {divergence}")


class _Probe:
    """A learner whose rate rises from step to step."""

    def __init__(self, learn: Learn, rates: list[float]) -> None:
        self._learn, self.rates, self._step = learn, rates, 0
        self.rate = rates[0]

    def learn(self, batches: Sequence[Batch]) -> tuple[float, float | None]:
        self.rate = self.rates[self._step]
        self._step += 1
        return self._learn(batches, self.rate)


class _Watch(Callback):
    """Smooths the loss, and stops when it explodes."""

    def __init__(self, steps: int, smoothing: float, divergence: float) -> None:
        self._steps, self._smoothing, self._divergence = steps, smoothing, divergence
        self.losses: list[float] = []
        self.smoothed: list[float] = []
        self.ended = ""
        self._sum = self._weight = 0.0

    def on_step_end(self, run: Run) -> None:
        self.losses.append(run.loss)
        # A mean of all losses so far in which each step counts less than the next.
        self._sum = self._smoothing * self._sum + run.loss
        self._weight = self._smoothing * self._weight + 1
        self.smoothed.append(self._sum / self._weight)
        lowest = min(self.smoothed)
        room = max(abs(lowest), self.smoothed[0] - lowest)
        if self.smoothed[-1] > lowest + (self._divergence - 1) * room:
            self._stop(run, f"the loss exploded at a rate of {run.rate:.3g}")
        elif len(self.losses) == self._steps:
            self._stop(run, f"the highest rate of {run.rate:.3g} was reached")

    def _stop(self, run: Run, reason: str) -> None:
        self.ended = reason
        run.stop(reason)


def _copied(state: State) -> State:
    """A state of the same contents, in memory of its own."""
    with state.access.shared():
        optimizer = state.optimizer
        if optimizer is not None:
            slots = {kind: FlatTensors.holding(tensors) for kind, tensors in optimizer.slots.items()}
            optimizer = dataclasses.replace(optimizer, slots=slots)
        return State(
            FlatTensors.holding(state.trainable),
            FlatTensors.holding(state.frozen),
            properties=state.properties,
            optimizer=optimizer,
            random=RandomState(state.random.seed, state.random.passes),
            attachments=state.attachments,
        )

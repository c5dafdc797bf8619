"""The one training loop of the project: epochs, batches, callbacks, and what happens when something ends it early.

It trains whatever can `learn` from batches. What is saved and shown meanwhile is the business of callbacks.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple, Protocol

import numpy as np

from onward.callbacks.base import Callback
from onward.errors import NonFiniteError, PeerError
from onward.trainer.history import History
from onward.trainer.interruption import Uninterrupted
from onward.trainer.memory import resident_memory
from onward.trainer.prefetch import Prefetch
from onward.trainer.team import Team

_SHOWN = 8  # so many rows are named in an error
# Samples are taken of the first steps, and then as often as this part of the time allows: a norm reads all gradients,
# and the system has to be asked for the memory, which together is a third of the shortest steps.
_FIRST, _SAMPLING = 16, 0.003
logger = logging.getLogger(__name__)


class Batch(Protocol):
    """What a step is made of."""

    @property
    def rows(self) -> int: ...


class Source(Protocol):
    """Where batches come from: `onward.trainer.data.Source`, or anything like it."""

    @property
    def steps(self) -> int | None: ...

    def epoch(self, number: int, start: int = 0) -> Iterator[Any]: ...


class Learner(Protocol):
    """What is trained."""

    def learn(self, batches: Sequence[Any]) -> tuple[float, float | None]:
        """Make one update from these batches; returns their loss, and its weight in the mean of an epoch.

        The weight is None for a loss that is a sum.

        Where it raises, nothing has changed.
        """
        ...


class _Step(NamedTuple):
    """What a step is made of: batches of this process, and how many batches and rows all have."""

    group: list[Any]
    batches: int
    rows: int


class Loop:
    """Training under way; callbacks know it as `run` (`onward.callbacks.Run` says what they may use).

    Args:
        learner: what is trained; it may have a `rate` and a `gradient_norm`, and what callbacks need to save it
            (`snapshot`, `restore`, `save_run`).
        source: what it learns from.
        epochs: how many epochs to train, from `first` on.
        first: the number of the first epoch.
        step: how many updates have been made before.
        accumulate: how many batches make one update.
        validate: called after each epoch; what it returns goes into the logs.
        prefetch: how many batches are prepared ahead, in a thread of their own.
        state: of an interrupted loop, from `state_dict`; callbacks of the same kinds get theirs.
        team: the processes that run this loop together, each with its own part of the data.
    """

    def __init__(
        self,
        learner: Learner,
        source: Source,
        *,
        epochs: int,
        callbacks: Sequence[Callback] = (),
        history: History | None = None,
        first: int = 0,
        step: int = 0,
        accumulate: int = 1,
        validate: Callable[[], Mapping[str, float]] | None = None,
        prefetch: int = 2,
        state: Mapping[str, Any] | None = None,
        team: Team | None = None,
    ) -> None:
        self.learner, self.history = learner, History() if history is None else history
        self.epochs, self.batches = first + epochs, source.steps
        self.epoch, self.batch, self.step, self.rows = first, 0, step, 0
        self.loss = float("nan")
        self.logs: dict[str, Any] = {}
        self.resumed = state is not None
        self.error: BaseException | None = None
        self.stopped: str | None = None  # why, if a callback has asked for it
        self._source, self._callbacks = source, list(callbacks)
        self._accumulate, self._validate, self._prefetch = accumulate, validate, prefetch
        self._team = Team() if team is None else team
        self._total = self._weight = 0.0  # of the losses of this epoch
        self._seconds = 0.0
        self._since = self._pause = 0.0  # the time of steps since the last sample, and until the next
        self._before_end: dict[str, Any] | None = None  # the state before the hooks that end an epoch
        if state is not None:
            self._load(state)

    @property
    def rate(self) -> float | None:
        """The learning rate of the last step, if the learner has one."""
        return getattr(self.learner, "rate", None)

    def run(self) -> History:
        """Train to the end, or until a callback stops it."""
        begun: list[Callback] = []
        try:
            for callback in self._callbacks:
                begun.append(callback)
                callback.on_fit_begin(self)
            while self.epoch < self.epochs and not self._stops("the beginning of an epoch"):
                self._run_epoch()
        except BaseException as error:
            self.error = error
            raise
        finally:
            with Uninterrupted():
                self._end(begun)
        return self.history

    def _end(self, begun: Sequence[Callback]) -> None:
        """Let every callback end what it has begun; what ended training counts more than what happens here."""
        training, raised = self.error, None
        for callback in begun:
            try:
                callback.on_fit_end(self)
            except BaseException as error:
                logger.warning("%r failed when training ended: %s", callback, error)
                raised = raised or error
        if training is None and raised is not None:
            self.error = raised
            raise raised

    def _run_epoch(self) -> None:
        if self.batch == 0:
            self._total = self._weight = self._seconds = 0.0
            self.rows, self.logs = 0, {}
        self._call("on_epoch_begin")
        began = time.perf_counter()
        with closing(Prefetch(self._source.epoch(self.epoch, self.batch), self._prefetch)) as batches:
            while (step := self._next(batches)) is not None:
                with Uninterrupted():
                    self._learn(step)
                    now = time.perf_counter()
                    self._record(now - began)
                    began = now
                    self._call("on_step_end")
                    self._call("on_settled")
        if self.stopped is None:
            self._end_epoch()

    def _next(self, batches: Iterator[Any]) -> _Step | None:
        """What the next step is made of; None where the epoch, or training, ends in all processes."""
        group = [] if self.stopped is not None else list(itertools.islice(batches, self._accumulate))
        told = self._team.meet("a training step", (self.stopped, len(group), sum(batch.rows for batch in group)))
        self._hear(stopped for stopped, _, _ in told)
        count = max(count for _, count, _ in told)
        if self.stopped is not None or count == 0:
            return None
        return _Step(group, count, sum(rows for _, _, rows in told))

    def _stops(self, place: str) -> bool:
        """Whether training ends, because a callback of any process has asked for it."""
        self._hear(self._team.meet(place, self.stopped))
        return self.stopped is not None

    def _hear(self, reasons: Iterable[str | None]) -> None:
        self.stopped = next((reason for reason in (self.stopped, *reasons) if reason is not None), None)

    def _learn(self, step: _Step) -> None:
        group = step.group
        try:
            self.loss, weight = self.learner.learn(group)
        except PeerError:  # which says where that happened
            raise
        except NonFiniteError as error:
            raise NonFiniteError(
                f"{self._whereabouts(group)}: {error} The parameters are as they were before this step."
            ) from error
        self.step += 1
        self.batch += step.batches
        self.rows += step.rows
        if weight is None:
            self._total += self.loss
        else:
            self._total += self.loss * weight
            self._weight += weight
        self.logs["loss"] = self._mean()

    def _record(self, seconds: float) -> None:
        """Note what is known of a step, and now and then what takes time to find out."""
        self._seconds += seconds
        self.history.add_step(self.loss, self.rate, seconds)
        self._since += seconds
        if self._since >= self._pause or len(self.history.losses) <= _FIRST:
            began = time.perf_counter()
            self.history.add_sample(getattr(self.learner, "gradient_norm", None), resident_memory())
            self._since, self._pause = 0.0, (time.perf_counter() - began) / _SAMPLING

    def _mean(self) -> float:
        """The loss of this epoch so far."""
        return self._total / self._weight if self._weight else self._total

    def _whereabouts(self, group: Sequence[Any]) -> str:
        """Which step went wrong, for an error."""
        numbers = f"batch {self.batch}" if len(group) == 1 else f"batches {self.batch} to {self.batch + len(group) - 1}"
        rows = sum(batch.rows for batch in group)
        next_rate = getattr(self.learner, "learning_rate", self.rate)
        rate = "" if next_rate is None else f", learning rate {next_rate:g}"
        where = f"step {self.step} (epoch {self.epoch}, {numbers} with {rows} rows{rate})"
        if not hasattr(self._source, "row_numbers"):
            return where
        found = self._source.row_numbers(self.epoch, self.batch, len(group))
        shown = ", ".join(map(str, found[:_SHOWN])) + (" ..." if len(found) > _SHOWN else "")
        return f"{where}, rows {shown} of the data"

    def _end_epoch(self) -> None:
        logs = {**self.logs, **({} if self._validate is None else self._validate())}
        self._before_end = self._state_dict()
        with Uninterrupted():
            self.logs = logs
            self.logs.update({} if self.rate is None else {"rate": self.rate}, seconds=self._seconds)
            self._call("on_epoch_end")
            self._stops("the end of an epoch")
            self.history.add_epoch(self.epoch, self.logs)
            self.epoch, self.batch = self.epoch + 1, 0
            self._before_end = None
            self._call("on_settled")

    def _call(self, hook: str) -> None:
        for callback in self._callbacks:
            getattr(callback, hook)(self)

    # What callbacks may do --------------------------------------------------------------------------------------------

    def stop(self, reason: str = "") -> None:
        """End training after this step, or after this epoch."""
        self.stopped = reason

    def snapshot(self) -> dict[str, np.ndarray]:
        """A copy of what is trained."""
        return self.learner.snapshot()  # type: ignore[attr-defined]

    def restore(self, snapshot: Mapping[str, np.ndarray]) -> None:
        """Set what is trained."""
        self.learner.restore(snapshot)  # type: ignore[attr-defined]

    def save(self, path: Any) -> None:
        """Write a checkpoint from which training continues exactly here."""
        self.learner.save_run(path, self)  # type: ignore[attr-defined]

    # What an interrupted loop remembers -------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where training is; in the middle of the hooks that end an epoch, where it was before."""
        return self._before_end or self._state_dict()

    def _state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "batch": self.batch,
            "step": self.step,
            "rows": self.rows,
            "loss": self.loss,
            "total": self._total,
            "weight": self._weight,
            "seconds": self._seconds,
            "callbacks": [[type(callback).__name__, callback.state_dict()] for callback in self._callbacks],
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        self.epoch, self.batch = int(state["epoch"]), int(state["batch"])
        self.step, self.rows = int(state["step"]), int(state["rows"])
        self.loss = float(state["loss"])
        self._total, self._weight = float(state["total"]), float(state["weight"])
        self._seconds = float(state["seconds"])
        if self.batch:
            self.logs = {"loss": self._mean()}
        waiting = list(self._callbacks)
        for kind, saved in state["callbacks"]:
            callback = next((each for each in waiting if type(each).__name__ == kind), None)
            if callback is not None:
                waiting.remove(callback)
                callback.load_state_dict(saved)

"""The course of a trainer: its calls of `fit`, how far they have come, and how an interrupted one is continued."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onward.callbacks import Callback, Checkpoints
from onward.errors import OnwardError
from onward.runtime.state import State
from onward.trainer import persistence
from onward.trainer.continuation import Fit, Settings, newest_of, require_same
from onward.trainer.data import Source
from onward.trainer.history import History
from onward.trainer.loop import Learner, Loop
from onward.trainer.rate import Rates
from onward.trainer.replica import keep_equal, synchronise
from onward.trainer.team import Team
from onward.trainer.trained import TrainedModel


class Course:
    """Epochs and updates so far, in memory and in checkpoints.

    Args:
        accumulate: how many batches make one update.
        seed: what the order of the rows follows from.

    Attributes:
        history: what happened so far, over all calls of `fit`.
        fits: with which arguments it was called, as texts.
    """

    def __init__(self, model: TrainedModel, rates: Rates, team: Team, *, accumulate: int, seed: int) -> None:
        self._model, self._rates, self._team = model, rates, team
        self._accumulate, self._seed = accumulate, seed
        self.history, self.fits = History(), list[dict[str, str]]()
        self._epoch = 0
        self._loop: Loop | None = None  # of a fit under way
        self._unfinished: Mapping[str, Any] | None = None

    @property
    def steps(self) -> int:
        """How many updates have been made."""
        return self._model.optimizer.state.step

    @property
    def epochs(self) -> int:
        """How many epochs are done."""
        return self._epoch if self._loop is None else self._loop.epoch

    def leave(self) -> None:
        """Go on by other steps than those of the fit that was interrupted."""
        self._unfinished = None

    # Fits -------------------------------------------------------------------------------------------------------------

    def describe(self, training: Source, batch_size: int, shuffle: Any, epochs: int) -> Settings:
        """What has to be the same for a fit to be continued."""
        counts = training.dealt or self._team.strategy.sharded
        return {
            "the model": self._model.identity,
            "the optimizer": self._model.optimizer_identity,
            "schedule": self._rates.describe(),
            "epochs": epochs if self._rates.needs_total else None,  # else it may go on for longer
            "seed": self._seed,
            "accumulate": self._accumulate,
            "batch_size": int(batch_size) if training.rows is not None else None,
            "the number of rows": training.rows,
            "the number of batches": training.steps,
            "shuffle": shuffle if isinstance(shuffle, bool) else "a function",
            "the number of processes": self._team.size if counts else None,
        }

    def fit(
        self,
        learner: Learner,
        training: Source,
        *,
        epochs: int,
        arguments: dict[str, str],
        settings: Settings,
        callbacks: Sequence[Callback],
        resume: bool,
        validate: Callable[[], Mapping[str, float]] | None,
        prefetch: int,
    ) -> History:
        """Train for some epochs more, or to the end of those that were interrupted."""
        saved = self._interrupted(callbacks, settings) if resume else None
        if saved is None:
            steps = settings["the number of batches"]
            self._rates.begin(self.steps, None if steps is None else epochs * -(-steps // self._accumulate))
        self.fits.append(arguments)
        self._fit = Fit(self._epoch if saved is None else int(saved["first"]), settings)
        loop = Loop(
            learner,
            training,
            epochs=epochs,
            callbacks=self._team.callbacks(callbacks),
            history=self.history,
            first=self._fit.first,
            step=self.steps,
            accumulate=self._accumulate,
            validate=validate,
            prefetch=prefetch,
            state=None if saved is None else saved["loop"],
            team=self._team,
        )
        return self._run(loop)

    def _run(self, loop: Loop) -> History:
        self._unfinished, self._loop = None, loop
        try:
            history = loop.run()
            self._team.meet("the end of fit")  # when files are written
            keep_equal(self._model, self._team)  # callbacks may restore in the end
            return history
        except BaseException:
            self._unfinished = self._fit.left(loop)
            raise
        finally:
            self._epoch, self._loop = loop.epoch, None

    def _interrupted(self, callbacks: Sequence[Callback], settings: Settings) -> Mapping[str, Any] | None:
        """What an interrupted fit has left, in a folder or here; None to start from the beginning."""
        if any(isinstance(callback, Checkpoints) for callback in callbacks):
            content = self._take(lambda: newest_of(callbacks, settings))
            return None if content is None else content["run"]
        if self._unfinished is None:
            raise OnwardError(
                "there is no interrupted fit to continue; to continue one of another process, give `directory`"
            )
        require_same(self._unfinished["settings"], settings, "the fit that was interrupted")
        return self._unfinished

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint, in the first process."""
        content = {"epoch": self.epochs, **self._remembered()}
        self._team.first("save", lambda: persistence.save(self._model, path, content))

    def save_run(self, path: str | os.PathLike[str], loop: Loop) -> None:
        """Write a checkpoint of a fit under way, if this is the first of several processes."""
        self._model.require_finite()
        if self._team.rank > 0:
            return
        content = {"epoch": loop.epoch, **self._remembered(), "run": self._fit.content(loop)}
        persistence.save(self._model, path, content)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue from a checkpoint: the next fit begins a new epoch."""
        self._take(lambda: persistence.read(path))

    def _remembered(self) -> dict[str, Any]:
        return {"rates": self._rates.state_dict(), "history": self.history.state_dict()}

    def _take(self, read: Callable[[], tuple[State, Mapping[str, Any]] | None]) -> Mapping[str, Any] | None:
        """Become what a checkpoint says, which the first process reads; returns what the trainer has written in it."""

        def taken() -> Mapping[str, Any] | None:
            found = read()
            if found is not None:
                self._model.take(found[0])
            return None if found is None else found[1]

        content = self._team.first("load", taken)
        if content is None:
            return None
        synchronise(self._model, self._team)
        self._unfinished = None
        if content:
            self._epoch = int(content["epoch"])
            self._rates.load_state_dict(content["rates"])
            self.history.load_state_dict(content["history"])
        return content

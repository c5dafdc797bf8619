"""What a callback is, and what it sees of the training that calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import numpy as np

from onward.errors import OnwardError

HOOKS = ("on_fit_begin", "on_epoch_begin", "on_step_end", "on_epoch_end", "on_settled", "on_fit_end")


class Run(Protocol):
    """Training under way: what hooks are called with.

    Attributes:
        epoch: the number of the epoch, from 0 on, over all calls of `fit`.
        epochs: where training ends: the number of the last epoch, plus one.
        batch: how many batches of this epoch are done.
        batches: how many it has; None if that is not known.
        step: how many updates have been made, over all calls of `fit`.
        rows: how many rows of this epoch are done.
        loss: that of the last step.
        rate: its learning rate.
        logs: the numbers of this epoch by name: "loss" (the mean over the epoch so far), and in `on_epoch_end`
            "val_loss" and all metrics. What is added there goes into the history.
        resumed: whether this call of `fit` continues one that was interrupted.
        error: in `on_fit_end`, what ended training early, if anything did.
        learner: what is trained, a `Trainer` as a rule.
        history: of all epochs.
    """

    epoch: int
    epochs: int
    batch: int
    batches: int | None
    step: int
    rows: int
    loss: float
    logs: dict[str, Any]
    resumed: bool
    error: BaseException | None
    learner: Any
    history: Any

    @property
    def rate(self) -> float | None: ...

    def stop(self, reason: str = "") -> None:
        """End training after this step, or after this epoch if its end is near."""
        ...

    def snapshot(self) -> dict[str, np.ndarray]:
        """A copy of all parameters and running statistics."""
        ...

    def restore(self, snapshot: Mapping[str, np.ndarray]) -> None:
        """Set parameters and running statistics."""
        ...

    def save(self, path: Any) -> None:
        """Write a checkpoint from which training continues exactly here."""
        ...


class Callback:
    """Hooks that training calls; a subclass overrides those it wants.

    An error in a hook ends training, and reaches the caller of `fit` as it is. Callbacks are called in the order in
    which they were given. One that remembers something between calls says so in `state_dict`, which is saved in
    checkpoints.

    Attributes:
        first_only: where several processes train together (`Trainer(strategy=...)`), whether only the first one calls
            it: true for what writes files or shows something. What changes the parameters has to be called in all.
    """

    first_only: ClassVar[bool] = False

    def on_fit_begin(self, run: Run) -> None:
        """Before the first step; `run.resumed` says whether it is the first at all."""

    def on_epoch_begin(self, run: Run) -> None:
        """Before each epoch, and before what is left of one that was interrupted."""

    def on_step_end(self, run: Run) -> None:
        """After each update of the parameters."""

    def on_epoch_end(self, run: Run) -> None:
        """After each epoch, its validation included."""

    def on_settled(self, run: Run) -> None:
        """After each step and each epoch, when all other hooks of all callbacks have run: the moment to save."""

    def on_fit_end(self, run: Run) -> None:
        """In the end, whatever ended it: see `run.error`."""

    def state_dict(self) -> dict[str, Any]:
        """What has to be remembered: numbers, texts, arrays, and lists and dicts of these."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned; called before `on_fit_begin`."""


class Lambda(Callback):
    """A callback of functions: ``Lambda(on_epoch_end=lambda run: print(run.logs))``."""

    def __init__(self, **hooks: Callable[[Run], Any]) -> None:
        for name, function in hooks.items():
            if name not in HOOKS or not callable(function):
                raise OnwardError(f"Lambda takes functions of `run` by the names {', '.join(HOOKS)}, not {name!r}")
            setattr(self, name, function)

    def __repr__(self) -> str:
        return f"Lambda({', '.join(vars(self))})"

"""A `fit` that was interrupted: what it has left, and whether it can be continued."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from onward.callbacks import Callback, Checkpoints
from onward.errors import OnwardError
from onward.runtime.state import State
from onward.trainer import persistence
from onward.trainer.loop import Loop

# What has to be the same for a fit to be continued, by what errors call it.
Settings = dict[str, Any]


class Fit(NamedTuple):
    """One call of `fit`: the number of its first epoch, and what has to be the same to continue it."""

    first: int
    settings: Settings

    def content(self, loop: Loop) -> dict[str, Any]:
        """What is needed to continue it."""
        return {"first": self.first, "settings": self.settings, "loop": loop.state_dict()}

    def left(self, loop: Loop) -> dict[str, Any] | None:
        """The same after an error, for the same process; nothing if a callback cannot say what it remembers."""
        with contextlib.suppress(Exception):
            return copy.deepcopy(self.content(loop))
        return None


class Left(NamedTuple):
    """What an interrupted fit has left in a folder."""

    path: Path
    state: State
    content: Mapping[str, Any]  # of the trainer; "run" is that of the fit


def with_checkpoints(callbacks: Sequence[Callback], directory: str | os.PathLike[str] | None) -> list[Callback]:
    """The callbacks, and one that writes checkpoints if a folder for them is given."""
    given: list[Callback] = [callbacks] if isinstance(callbacks, Callback) else list(callbacks)
    for callback in given:
        if not isinstance(callback, Callback):
            raise OnwardError(f"a callback is an onward.callbacks.Callback, not {callback!r}")
    if directory is None:
        return given
    if any(isinstance(callback, Checkpoints) for callback in given):
        raise OnwardError("Checkpoints has a directory already; leave `directory` of fit out")
    return [*given, Checkpoints(directory)]


def newest_of(callbacks: Sequence[Callback]) -> Left | None:
    """The newest checkpoint in the folder of these callbacks; None if there is none yet."""
    folder = next(callback for callback in callbacks if isinstance(callback, Checkpoints))
    path = folder.newest
    if path is None:
        return None
    state, content = persistence.read(path)
    if "run" not in content:
        raise OnwardError(f"{str(path)!r} was not written by fit; continue from it with load")
    return Left(path, state, content)


def require_same(saved: Settings, now: Settings, what: str) -> None:
    """Refuse to continue a fit with other settings, and say which differ."""
    different = []
    for name, value in now.items():
        before = saved.get(name)
        if before == value:
            continue
        is_digest = name.startswith("the ") and isinstance(value, str)
        different.append(f"{name} is another one" if is_digest else f"{name} was {before}, and is {value}")
    if different:
        raise OnwardError(
            f"{what} cannot be continued, because {'; '.join(different)}. Use what was used before; or begin anew, "
            "with its parameters if you want: trainer.load(...) and fit without `resume`"
        )

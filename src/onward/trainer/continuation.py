"""A `fit` that was interrupted: what it has left, and whether it can be continued."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from onward.callbacks import Callback, Checkpoints
from onward.errors import OnwardError, PeerError
from onward.runtime.state import State
from onward.trainer import persistence
from onward.trainer.data import Source
from onward.trainer.loop import Loop
from onward.trainer.team import Team

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


def newest_of(callbacks: Sequence[Callback], settings: Settings) -> tuple[State, Mapping[str, Any]] | None:
    """The newest checkpoint in the folder of these callbacks, of a fit with these settings; None if there is none."""
    folder = next(callback for callback in callbacks if isinstance(callback, Checkpoints))
    path = folder.newest
    if path is None:
        return None
    state, content = persistence.read(path)
    if "run" not in content:
        raise OnwardError(f"{str(path)!r} was not written by fit; continue from it with load")
    require_same(content["run"]["settings"], settings, repr(str(path)))
    return state, content


def agreed_settings(mine: Settings, epochs: int, team: Team) -> Settings:
    """The settings that several processes have in common; those that are given data of their own have it together."""
    given = team.meet("the beginning of fit", {**mine, "epochs": int(epochs)})
    if team.strategy.sharded:
        for name, whole in (("the number of rows", sum), ("the number of batches", max)):
            counts = [settings.pop(name) for settings in given]
            mine = {**mine, name: None if None in counts else whole(counts)}
    for rank, settings in enumerate(given):
        different = [name for name in settings if settings[name] != given[0][name]]
        if different:
            name = different[0]
            raise team.agreed(
                PeerError(
                    f"the processes were not given the same: {name} is {given[0][name]} in rank 0, and "
                    f"{settings[name]} in rank {rank}. Call fit with the same arguments in all of them; if each has "
                    "data of its own, use strategy=onward.torch.Distributed(sharded=True)"
                )
            )
    return mine


def require_repeatable(sources: Mapping[str, Source | None], epochs: int) -> None:
    """Refuse to go more than once through what can be gone through once."""
    for what, made in sources.items():
        if made is not None and made.once and epochs > 1:
            raise OnwardError(
                f"`{what}` is a generator, which yields its batches once, but epochs={epochs}; give a function that "
                "returns a new one for each epoch, or a list"
            )


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

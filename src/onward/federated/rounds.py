"""Which rounds are done: kept in a checkpoint of the server's trainer, from which a federation goes on."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onward.document import parse_value
from onward.errors import OnwardError
from onward.trainer import persistence
from onward.trainer.trainer import Trainer

_KEY = "onward.federated"


class Rounds:
    """The rounds of one federation.

    Python's generator, by which strategies draw clients, is part of what is kept; what a strategy itself remembers,
    such as the moments of FedAdam, is not.

    Args:
        path: the file, written after each round; None for none.
        settings: what has to be the same to go on, by what errors call it.

    Attributes:
        done: how many there have been before.
    """

    def __init__(self, trainer: Trainer, path: str | os.PathLike[str] | None, settings: Mapping[str, Any]) -> None:
        self._trainer, self._settings = trainer, dict(settings)
        self._path = None if path is None else Path(path)
        self.done = 0

    def begin(self, *, resume: bool) -> None:
        """Become what the checkpoint says, if there is one."""
        path = self._path
        if path is None or not path.exists():
            return
        if not resume:
            raise OnwardError(
                f"{str(path)!r} is there already: go on from it with server_app(..., resume=True), remove it, or give "
                "another `checkpoint`"
            )
        saved = self._read(path)
        self._require_same(saved["settings"])
        self._trainer.load(path)
        self._trainer.trained.state.properties.pop(_KEY, None)
        try:
            version, numbers, cached = saved["random"]
            random.setstate((version, tuple(numbers), cached))
            self.done = int(saved["done"])
        except (TypeError, ValueError) as error:
            raise _damaged(path) from error

    def _require_same(self, saved: Mapping[str, Any]) -> None:
        now = self._settings
        different = [
            f"{name} was {saved.get(name)}, and is {now[name]}" for name in now if saved.get(name) != now[name]
        ]
        if different:
            raise OnwardError(
                f"the federation of {str(self._path)!r} cannot go on, because {'; '.join(different)}. Use what was "
                "used before; or begin anew from its parameters, with trainer.load(...), server_app(trainer) and "
                "another `checkpoint`"
            )

    def _read(self, path: Path) -> dict[str, Any]:
        state, _ = persistence.read(path)
        text = state.properties.get(_KEY)
        if text is None:
            raise OnwardError(f"{str(path)!r} was not written by a server_app; give its trainer: trainer.load(...)")
        saved = parse_value(str(text), f"{_KEY!r} in {str(path)!r}")
        if not isinstance(saved, dict) or not {"settings", "random", "done"} <= saved.keys():
            raise _damaged(path)
        return saved

    def save(self, done: int) -> None:
        """Write that so many are done; the trainer has their parameters."""
        if self._path is None:
            return
        content = {"done": done, "settings": self._settings, "random": random.getstate()}
        properties = self._trainer.trained.state.properties
        properties[_KEY] = json.dumps(content)
        try:
            self._trainer.save(self._path)
        finally:
            del properties[_KEY]


def _damaged(path: Path) -> OnwardError:
    return OnwardError(f"{str(path)!r} is damaged: what the server has written in it cannot be read")

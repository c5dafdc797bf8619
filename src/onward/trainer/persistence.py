"""Checkpoints of a `Trainer`: the state of its model, and all that it remembers besides."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from onward import __version__
from onward.document import parse_value
from onward.errors import OnwardError
from onward.runtime import checkpoint
from onward.runtime.state import State
from onward.trainer.packing import pack, unpack
from onward.trainer.trained import TrainedModel

_KEY = "onward.trainer"
_VERSION = 1


def save(model: TrainedModel, path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Write a checkpoint with `content`: plain values, and arrays among them."""
    arrays: dict[str, Any] = {}
    packed = pack({"version": _VERSION, "onward": __version__, **content}, arrays, "trainer")
    with model.state.access.shared():
        checkpoint.save(
            model.state, path, include_optimizer=True, properties={_KEY: json.dumps(packed)}, attachments=arrays
        )


def read(path: str | os.PathLike[str]) -> tuple[State, dict[str, Any]]:
    """A checkpoint: the state of the model, and what else is in it; nothing in one that no Trainer has written."""
    state = checkpoint.load(path)
    text = state.properties.pop(_KEY, None)
    if text is None:
        return state, {}
    content = parse_value(str(text), f"{_KEY!r} in {str(path)!r}")
    if not isinstance(content, dict) or not isinstance(content.get("version"), int):
        raise OnwardError(f"{str(path)!r} is damaged: what the trainer has written in it cannot be read")
    if content["version"] > _VERSION:
        raise OnwardError(f"{str(path)!r} was written by a newer onward ({content.get('onward')}); update onward")
    unpacked = unpack(content, state.attachments)
    state.attachments = {name: x for name, x in state.attachments.items() if not name.startswith("trainer/")}
    return state, unpacked

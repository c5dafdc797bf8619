"""Objects that give something else each time they are asked: generators of random numbers, iterators."""

from __future__ import annotations

import contextlib
import pickle
import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch


class Sources:
    """Objects of the attributes and variables of a module, and how they stand."""

    def __init__(self, objects: Iterable[object]) -> None:
        self._objects = list(objects)
        self._states = list(map(_state, self._objects))

    def have_been_asked(self) -> bool:
        """Whether one stands elsewhere now; generators are put back, since those of variables are the user's."""
        found = False
        for value, before in zip(self._objects, self._states, strict=True):
            if _state(value) != before:
                found = True
                _put_back(value, before)
        return found


def _state(value: Any) -> bytes | None:
    if isinstance(value, torch.Generator):
        return bytes(value.get_state().tolist())
    with contextlib.suppress(Exception):  # of what cannot be written down
        return pickle.dumps(value)
    return None


def _put_back(value: Any, state: bytes | None) -> None:
    if state is None:
        return
    if isinstance(value, torch.Generator):
        value.set_state(torch.tensor(list(state), dtype=torch.uint8))
    elif isinstance(value, random.Random):
        value.setstate(pickle.loads(state).getstate())
    elif isinstance(value, np.random.RandomState):
        value.set_state(pickle.loads(state).get_state())
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = pickle.loads(state).bit_generator.state

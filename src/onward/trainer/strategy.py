"""Where training runs: in this process alone, or in several that make each step together.

A strategy is all that a `Trainer` knows about other processes. `onward.torch.Distributed` is one; whoever has another
way to send numbers around writes a class with these three methods.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Protocol, runtime_checkable

from onward.errors import OnwardError
from onward.runtime.tensors import FlatTensors

# Where a strategy that is named comes from: in a front-end that is imported only if it is asked for.
_NAMED = {"distributed": "onward.torch", "ddp": "onward.torch"}


@runtime_checkable
class Strategy(Protocol):
    """Several processes that train one model, each from its part of every batch.

    Each method is called in all processes, in the same order, and returns in all of them or raises in all of them: an
    OnwardError where another process does not answer.

    Attributes:
        rank: the number of this process, from 0 on.
        size: how many there are.
        sharded: whether each process is given its own part of the data; else all are given the same, and divide it.
    """

    rank: int
    size: int
    sharded: bool

    def gather(self, value: Any) -> list[Any]:
        """What each process gives, in the order of ranks: numbers, texts, arrays, and tuples, lists, dicts of them."""
        ...

    def add_up(self, tensors: FlatTensors, weight: float) -> None:
        """Let the tensors be the sum over all processes of weight times what they are, in place.

        With a weight of 0 it does not matter what they are. All processes get the same bits.
        """
        ...

    def broadcast(self, tensors: FlatTensors) -> None:
        """Let the tensors be those of rank 0, in place."""
        ...


class Alone:
    """One process, which has nobody to ask."""

    rank, size, sharded = 0, 1, False

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def add_up(self, tensors: FlatTensors, weight: float) -> None:
        """The sum of one: the weight of the only part is 1."""

    def broadcast(self, tensors: FlatTensors) -> None:
        """They are those of rank 0."""

    def __repr__(self) -> str:
        return "one process"


def strategy_of(given: str | Strategy | None) -> Strategy:
    """What `Trainer(strategy=...)` means."""
    if given == "auto":
        given = "distributed" if "WORLD_SIZE" in os.environ else None
    if given is None:
        return Alone()
    if isinstance(given, str) and given in _NAMED:
        made: Strategy = importlib.import_module(_NAMED[given]).Distributed()
        return made
    if isinstance(given, (str, type)) or not isinstance(given, Strategy):
        raise OnwardError(
            f"`strategy` is 'distributed', 'auto' (which is that where a launcher such as torchrun has started several "
            f"processes, and else one process), onward.torch.Distributed(...), or None, not {given!r}"
        )
    return given

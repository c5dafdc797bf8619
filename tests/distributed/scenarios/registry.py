"""What scenarios are made of, and where they are found by name.

A scenario is a training that one process runs, and several do: it returns what has to be the same, or what there is to
say about it. The processes run all of them one after the other (`worker.py`), also those in which something goes wrong:
whatever happens, they have to be ready for the next.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import onward
from onward.callbacks import Callback, Lambda
from onward.trainer.strategy import Strategy

Scenario = Callable[[Strategy | None, Path], Any]
SCENARIOS: dict[str, Scenario] = {}
SHARDED: set[str] = set()


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


def sharded(function: Scenario) -> Scenario:
    """A scenario in which each process has data of its own."""
    SHARDED.add(function.__name__)
    return scenario(function)


def rank_of(strategy: Strategy | None) -> int:
    return 0 if strategy is None else strategy.rank


def everything(trainer: onward.Trainer) -> dict[str, Any]:
    """Parameters, optimizer, and history without times."""
    optimizer = trainer._model.optimizer.state
    times = {"seconds", "step_seconds", "memory"}
    return {
        "parameters": trainer.snapshot(),
        "slots": {kind: {name: np.array(x) for name, x in slot.items()} for kind, slot in optimizer.slots.items()},
        "epochs": [{name: x for name, x in row.items() if name not in times} for row in trainer.history.epochs],
        "losses": list(trainer.history.losses),
        "steps": trainer.steps,
    }


def failure(call: Callable[[], Any]) -> tuple[str, str, float]:
    """What a call raises: its kinds, its text, and after how many seconds."""
    began = time.monotonic()
    try:
        call()
    except BaseException as error:
        return " ".join(kind.__name__ for kind in type(error).__mro__), str(error), time.monotonic() - began
    return "", "", time.monotonic() - began


fast: Any = functools.partial(onward.Trainer, loss="cross_entropy", learning_rate=0.05)
quiet: dict[str, Any] = {"progress": False}


def break_at(step: int, strategy: Strategy | None, rank: int) -> Callback:
    def breaks(run: Any) -> None:
        if run.step == step and rank_of(strategy) == rank:
            raise ValueError(f"step {step} is enough")

    return Lambda(on_step_end=breaks)

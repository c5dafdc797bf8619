"""Whether processes that divide data between them were given the same data, in the same order.

Each takes its part of what it was given. Where that differs, because each has drawn another split for instance, some
rows would be used twice and others never, and nothing would look wrong.
"""

from __future__ import annotations

import zlib

import numpy as np

from onward.callbacks import Callback, Run
from onward.errors import PeerError
from onward.trainer.data import Source
from onward.trainer.team import Team

# Machines may prepare the same data with different rounding.
_CLOSE = {"rtol": 1e-3, "atol": 1e-6}


def require_alike(source: Source, team: Team) -> None:
    """Refuse to divide data that is not the same in all processes: as far as a few of its rows tell."""
    if team.size == 1:
        return
    given = team.meet("the division of data", (source.rows, source.steps, source.sample()))
    rows, steps, sample = given[0]
    for rank, (other_rows, other_steps, other_sample) in enumerate(given):
        if other_rows != rows:
            raise _different(team, f"the number of rows is {rows} in rank 0, and {other_rows} in rank {rank}")
        if other_steps != steps:
            raise _different(team, f"the number of batches is {steps} in rank 0, and {other_steps} in rank {rank}")
        name = _first_difference(sample, other_sample)
        if name is not None:
            raise _different(team, f"rank {rank} has other rows of {name!r} than rank 0, or in another order")


def _first_difference(sample: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> str | None:
    """The name of what differs, if anything does."""
    for name in sample.keys() | other.keys():
        a, b = sample.get(name), other.get(name)
        if a is None or b is None or a.shape != b.shape:
            return name
        if a.dtype.kind == "f" and b.dtype.kind == "f":
            if not np.allclose(a, b, **_CLOSE, equal_nan=True):
                return name
        elif not np.array_equal(a, b):
            return name
    return None


def _different(team: Team, what: str) -> PeerError:
    return team.agreed(
        PeerError(
            f"the processes were not given the same: {what}. Give all of them the same data, in the same order (draw "
            "splits and orders from the same seed); if each has data of its own, use "
            "strategy=onward.torch.Distributed(sharded=True)"
        )
    )


class SameOrder(Callback):
    """Compares the orders that the user's own function has given the rows of an epoch."""

    def __init__(self, source: Source, team: Team) -> None:
        self._source, self._team = source, team

    def on_epoch_begin(self, run: Run) -> None:
        order = self._source.order(run.epoch)
        digest = None if order is None else zlib.crc32(np.ascontiguousarray(order, np.int64).data)
        digests = self._team.meet("the order of an epoch", digest)
        if len(set(digests)) > 1:
            other = next(rank for rank, each in enumerate(digests) if each != digests[0])
            raise _different(
                self._team, f"`shuffle` returned another order of epoch {run.epoch} in rank {other} than in rank 0"
            )

"""The same model in several processes: the first one's state, for all of them."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from onward.errors import OnwardWarning, PeerError, warn
from onward.runtime.state import RandomState
from onward.runtime.tensors import FlatTensors
from onward.trainer.team import Team
from onward.trainer.trained import TrainedModel


class ReplicaWarning(OnwardWarning):
    """The parameters of processes that train together have become different."""


def join(model: TrainedModel, team: Team) -> int:
    """Let the model of this process be one of those that are trained together; returns the seed of all of them."""
    model.module.rank = team.rank
    if team.size > 1:
        _require_same(model, team)
        synchronise(model, team)
    return model.state.random.seed


def _require_same(model: TrainedModel, team: Team) -> None:
    """Refuse to train different models together."""
    identities = team.meet("the making of a Trainer", (model.identity, model.optimizer_identity))
    for rank, other in enumerate(identities):
        if other != identities[0]:
            what = "model, or loss," if other[0] != identities[0][0] else "optimizer"
            raise team.agreed(
                PeerError(
                    f"rank {rank} has another {what} than rank 0. Load the same file in all processes: parameters that "
                    "are not trained are a part of the model, so they cannot be drawn at random in each"
                )
            )


def synchronise(model: TrainedModel, team: Team) -> None:
    """Let the state of all processes be that of the first: parameters, statistics, optimizer and random numbers."""
    if team.size == 1:
        return
    strategy, state, optimizer = team.strategy, model.state, model.optimizer.state
    told = team.first("the exchange of a state", lambda: _plain(model))
    optimizer.step, optimizer.learning_rate, optimizer.initial_learning_rate, optimizer.schedule = told["optimizer"]
    state.random = RandomState(*told["random"])
    state.properties, state.attachments = told["properties"], told["attachments"]
    strategy.broadcast(state.trainable)
    for tensors in optimizer.slots.values():
        strategy.broadcast(tensors)
    others = FlatTensors.holding(state.frozen, state.frozen.device)
    strategy.broadcast(others)
    with state.access.exclusive():
        for name in state.frozen:  # sessions hold some of them as constants, and would be opened again
            if not np.array_equal(state.frozen[name], others[name]):
                state.assign(name, others[name])


def _plain(model: TrainedModel) -> dict[str, Any]:
    state, optimizer = model.state, model.optimizer.state
    return {
        "optimizer": (
            optimizer.step,
            optimizer.learning_rate,
            optimizer.initial_learning_rate,
            optimizer.schedule,
        ),
        "random": (state.random.seed, state.random.passes),
        "properties": state.properties,
        "attachments": state.attachments,
    }


def keep_equal(model: TrainedModel, team: Team) -> None:
    """See that all processes have the same parameters: all have made the same updates, if their machines are alike."""
    if team.size == 1:
        return
    tensors = model.state.trainable
    digest = 0
    for dtype in tensors.dtypes:
        digest = zlib.crc32(tensors.whole_array(dtype).view(np.uint8).data, digest)
    digests = team.meet("the comparison of parameters", digest)
    if len(set(digests)) > 1:
        different = ", ".join(str(rank) for rank, other in enumerate(digests) if other != digests[0])
        warn(
            f"the parameters of rank {different} are no longer those of rank 0, which all take now. Either machines "
            "compute with different rounding, which does little harm, or something has changed parameters in one "
            "process only: `restore` and what else changes them has to be called in all",
            ReplicaWarning,
        )
        synchronise(model, team)

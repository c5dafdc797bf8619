"""What the server asks of a client in one round, as records of Flower's messages."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from onward.errors import OnwardError

# What the strategy sees: an array, and how much it counts.
PARAMETERS = "parameters"
ROWS = "num-examples"
# Records of ours beside it, which it does not.
TASK = "onward"
STATISTICS = "onward.statistics"


@dataclass(frozen=True)
class Task:
    """How to train, and what for; the same for all clients of a round.

    Attributes:
        layout: of the buffers, see `Exchange.layout`.
        identity: of the model.
        round: its number, from 1 on.
        seed: that of the whole training.
        rate: the learning rate; 0 for that of the trainer.
    """

    layout: str
    identity: str
    round: int
    seed: int
    epochs: int
    batch_size: int
    rate: float

    def record(self) -> ConfigRecord:
        return ConfigRecord(asdict(self))

    @classmethod
    def of(cls, message: Message) -> Task:
        found = message.content.config_records.get(TASK)
        if found is None:
            raise OnwardError(
                "the message does not say what to train: a client of onward.federated needs a server of it, "
                "onward.federated.server_app"
            )
        content: dict[str, Any] = dict(found)
        return cls(**content)

    def seed_for(self, place: int) -> int:
        """Another one for each client and each round: what its rows are shuffled by, and what Dropout draws."""
        drawn = np.random.SeedSequence([self.seed % 2**64, self.round, place]).generate_state(1, np.uint64)
        return int(drawn[0] >> 1)


def place_of(context: Context) -> int:
    """Which client this is: the partition that it was given, or else the number of its node, new in each run."""
    return int(context.node_config.get("partition-id", context.node_id))


def array_record(name: str, array: np.ndarray) -> ArrayRecord:
    return ArrayRecord({name: Array(array)})


def exchanged(content: RecordDict) -> tuple[str, ArrayRecord]:
    """The record with the parameters: strategies may call it as they like."""
    found = {key: record for key, record in content.array_records.items() if key != STATISTICS}
    if len(found) != 1 or list(next(iter(found.values()))) != [PARAMETERS]:
        held = {key: list(record) for key, record in found.items()}
        raise OnwardError(f"the message has to have one array, {PARAMETERS!r}, but it has {held}")
    return next(iter(found.items()))


def statistics_of(content: RecordDict) -> np.ndarray:
    """The running statistics that came with a message."""
    return content.array_records[STATISTICS][STATISTICS].numpy()

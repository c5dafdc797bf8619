"""Flower's Grid, between the strategy and the clients: what is ours in the messages is added and taken out here.

A strategy of Flower sees one array and its metrics, in the same order in every run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from onward.errors import OnwardError, warn
from onward.federated.exchange import Exchange
from onward.federated.task import PARAMETERS, ROWS, STATISTICS, TASK, Task, array_record, exchanged, statistics_of

_UNKNOWN = math.inf  # the place of a client that does not say which one it is


class FederatedGrid(Grid):
    """Sends messages through another Grid.

    Nodes have numbers that are new in each run, and answer in any order. Here they come in the order of their
    partitions, so that a seed decides who is drawn, and sums are rounded in the same way each time.

    Args:
        task: what to ask for in a round, by its number.
        accept_failures: whether to go on with those that answered.
        timeout: for how long to wait for a client that has to say who it is, in seconds.
        done: how many rounds there have been before.
    """

    def __init__(
        self,
        grid: Grid,
        exchange: Exchange,
        task: Callable[[int], Task],
        *,
        accept_failures: bool,
        timeout: float,
        done: int = 0,
    ) -> None:
        self._grid, self._exchange, self._task = grid, exchange, task
        self._accept, self._timeout = accept_failures, timeout
        self._places: dict[int, float] = {}
        self.round = done

    # The nodes in order -----------------------------------------------------------------------------------------------

    def get_node_ids(self) -> Iterable[int]:
        found = list(self._grid.get_node_ids())
        unknown = [node for node in found if node not in self._places]
        if unknown:
            self._places.update(dict.fromkeys(unknown, _UNKNOWN))
            question = RecordDict({TASK: ConfigRecord({"question": "place"})})
            messages = [Message(question, node, MessageType.QUERY) for node in unknown]
            for reply in self._answers(messages, self._timeout):
                if not reply.has_error():
                    self._places[_sender(reply)] = int(reply.content.config_records[TASK]["place"])  # type: ignore[arg-type]
        return sorted(found, key=self._order)

    def _order(self, node: int) -> tuple[float, int]:
        return self._places.get(node, _UNKNOWN), node

    # Rounds -----------------------------------------------------------------------------------------------------------

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        sent = list(messages)
        if not sent:
            return []
        is_training = sent[0].metadata.message_type == MessageType.TRAIN
        self.round += is_training
        ours = self._instructions()
        for message in sent:
            _require_averaging(message.content)
            message.content = RecordDict({**dict(message.content), **ours})  # the strategy's is shared by all messages
        replies = self._answers(sent, timeout)
        sound = [reply for reply in replies if not reply.has_error()]
        for reply in sound:
            self._check(reply, is_training)
        if is_training and self._exchange.has_statistics:
            self._pool(sound)
        return replies

    def _instructions(self) -> dict[str, ConfigRecord | ArrayRecord]:
        """What our clients need besides parameters."""
        records: dict[str, ConfigRecord | ArrayRecord] = {TASK: self._task(self.round).record()}
        if self._exchange.has_statistics:
            records[STATISTICS] = array_record(STATISTICS, self._exchange.statistics())
        return records

    def _answers(self, sent: Sequence[Message], timeout: float | None) -> list[Message]:
        """The replies in the order of the partitions; raises where one is missing."""
        replies = sorted(
            self._grid.send_and_receive(sent, timeout=timeout), key=lambda each: self._order(_sender(each))
        )
        failed = {_sender(reply): _reason(reply) for reply in replies if reply.has_error()}
        silent = {message.metadata.dst_node_id for message in sent} - set(map(_sender, replies))
        failed.update(dict.fromkeys(silent, f"no answer within {timeout} s"))
        if failed:
            self._report(failed, len(sent))
        return replies

    def _report(self, failed: dict[int, str], asked: int) -> None:
        reasons = "\n".join(f"  {self._title(node)}: {reason}" for node, reason in sorted(failed.items()))
        what = f"{len(failed)} of {asked} clients failed in round {self.round}:\n{reasons}"
        if len(failed) == asked or not self._accept:
            raise OnwardError(f"{what}\nserver_app(..., accept_failures=True) goes on with those that answer")
        warn(what)

    def _title(self, node: int) -> str:
        place = self._places.get(node, _UNKNOWN)
        return f"node {node}" if place == _UNKNOWN else f"client {place}"

    def _check(self, reply: Message, is_training: bool) -> None:
        """Refuse what cannot be averaged."""
        who = self._title(_sender(reply))
        records = list(reply.content.metric_records.values())
        rows = records[0].get(ROWS) if len(records) == 1 else None
        if not isinstance(rows, (int, float)) or not rows > 0:
            raise OnwardError(f"{who} answered with {ROWS}={rows!r}, by which nothing can be averaged")
        if not is_training:
            return
        found = exchanged(reply.content)[1][PARAMETERS].numpy()
        expected = self._exchange
        if found.shape != (expected.size,) or found.dtype != expected.dtype:
            raise OnwardError(
                f"{who} answered with {found.dtype} {list(found.shape)}, but the parameters of the model are "
                f"{expected.dtype} [{expected.size}]"
            )
        if not np.isfinite(found).all():
            raise OnwardError(f"{who} answered with parameters that are NaN or infinite")
        if expected.has_statistics and STATISTICS not in reply.content:
            raise OnwardError(f"{who} answered without running statistics: it is no client of onward.federated")

    def _pool(self, replies: Sequence[Message]) -> None:
        """Running statistics of all rows together."""
        moments = [statistics_of(reply.content) for reply in replies]
        for reply in replies:
            del reply.content[STATISTICS]
        rows = [float(_rows(reply)) for reply in replies]
        self._exchange.take_statistics(np.average(moments, axis=0, weights=rows))

    # What is passed on ------------------------------------------------------------------------------------------------

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run

    def create_message(self, *args: Any, **options: Any) -> Message:
        return self._grid.create_message(*args, **options)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)


def _require_averaging(content: RecordDict) -> None:
    """Refuse a strategy that asks clients for more than parameters."""
    exchanged(content)
    if any(record.get("proximal-mu") for record in content.config_records.values()):
        raise OnwardError(
            "FedProx asks clients for a proximal term, which Trainer does not add: it would be FedAvg in truth. Use "
            "another strategy"
        )


def _sender(reply: Message) -> int:
    return int(reply.metadata.src_node_id)


def _reason(reply: Message) -> str:
    return (reply.error.reason or f"error {reply.error.code}").strip()


def _rows(reply: Message) -> Any:
    return next(iter(reply.content.metric_records.values()))[ROWS]

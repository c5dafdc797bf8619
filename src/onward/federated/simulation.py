"""All clients in this process, one after the other: no ray, no network, the same result each time."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp

from onward.errors import OnwardError

_PATIENCE = 5  # so often a strategy may ask who is there without sending anything
_RUN, _SERVER = 1, 1
logger = logging.getLogger(__name__)


def simulate(
    server: ServerApp, client: ClientApp, clients: int, *, run_config: Mapping[str, Any] | None = None
) -> None:
    """Run a ServerApp with so many clients in this process, to try things out and in tests.

    Clients are numbered: ``context.node_config["partition-id"]`` of "num-partitions", as in Flower's own simulation
    (``flwr.simulation.run_simulation``), which runs them side by side on ray.

    Args:
        run_config: what apps find in ``context.run_config``.
    """
    if isinstance(clients, bool) or not isinstance(clients, int) or clients < 1:
        raise OnwardError(f"`clients` is a number, at least 1, not {clients!r}")
    _identify()
    config = dict(run_config or {})
    context = Context(run_id=_RUN, node_id=_SERVER, node_config={}, state=RecordDict(), run_config=config)
    server(LocalGrid(client, clients, config), context)


class LocalGrid(Grid):
    """Clients that answer at once."""

    def __init__(self, client: ClientApp, clients: int, run_config: dict[str, Any]) -> None:
        self._client = client
        self._contexts = {
            _SERVER + 1 + place: Context(
                run_id=_RUN,
                node_id=_SERVER + 1 + place,
                node_config={"partition-id": place, "num-partitions": clients},
                state=RecordDict(),
                run_config=run_config,
            )
            for place in range(clients)
        }
        self._replies: dict[str, Message] = {}
        self._numbers = itertools.count()
        self._idle = 0

    def get_node_ids(self) -> Iterable[int]:
        self._idle += 1
        if self._idle > _PATIENCE:
            raise OnwardError(
                f"the strategy waits for more clients than the {len(self._contexts)} of this simulation; see its "
                "`min_available_nodes`, `min_train_nodes` and `min_evaluate_nodes`, or `clients` of server_app"
            )
        return list(self._contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self._idle = 0
        numbers = []
        for message in messages:
            number = str(next(self._numbers))
            self._replies[number] = self._answer(message)
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(number) for number in list(message_ids)]

    def _answer(self, message: Message) -> Message:
        context = self._contexts[message.metadata.dst_node_id]
        try:
            return self._client(message, context)
        except Exception as error:  # what Flower's own engines do with it
            logger.warning("client %s failed", context.node_config["partition-id"], exc_info=True)
            reason = f"{type(error)}:<'{error}'>"
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def set_run(self, run: Any) -> None:
        self._run = run

    @property
    def run(self) -> Any:
        return self._run


def _identify() -> None:
    """Messages carry the identity of the process that makes them, which newer releases want to be set before."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:
        return
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, _RUN, _SERVER

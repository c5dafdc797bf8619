"""The client: trains what the server sends on rows that stay where they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from onward.callbacks import Callback, Run
from onward.errors import OnwardError
from onward.federated.exchange import Exchange
from onward.federated.task import (
    PARAMETERS,
    ROWS,
    STATISTICS,
    TASK,
    Task,
    array_record,
    exchanged,
    place_of,
    statistics_of,
)
from onward.trainer.trainer import Trainer

MakeTrainer = Callable[[int], Trainer]
_NOT_MEASURED = ("epoch", "seconds", "rate")


def client_app(
    make_trainer: MakeTrainer,
    data: Callable[[Context], Any],
    *,
    evaluation: Callable[[Context], Any] | None = None,
    mods: Sequence[Any] = (),
) -> ClientApp:
    """A Flower ClientApp that trains with `onward.Trainer`.

    The server says how long, with which batches and at which rate. Every message makes a new trainer, so that an
    optimizer begins each round anew; nothing is kept between rounds.

    Args:
        make_trainer: a function of a seed that returns a new `onward.Trainer`, the same for all clients and the server.
        data: a function of Flower's Context that returns the rows of this client, as `Trainer.fit` takes them. In a
            simulation ``context.node_config["partition-id"]`` is the number of the client, of "num-partitions".
        evaluation: the same for rows to test with; by default the model is tested with those of `data`.
        mods: mods of Flower.
    """
    for name, given in (("make_trainer", make_trainer), ("data", data), ("evaluation", evaluation)):
        if given is not None and not callable(given):
            raise OnwardError(f"`{name}` is a function, not {type(given).__name__}")
    client = _Client(make_trainer, data, evaluation or data)
    app = ClientApp(mods=list(mods))
    app.train()(client.train)
    app.evaluate()(client.evaluate)
    app.query()(client.introduce)
    return app


@dataclass(frozen=True)
class _Client:
    """The functions that answer messages."""

    make_trainer: MakeTrainer
    data: Callable[[Context], Any]
    evaluation: Callable[[Context], Any]

    def introduce(self, message: Message, context: Context) -> Message:
        """Say which client this is."""
        return Message(RecordDict({TASK: ConfigRecord({"place": place_of(context)})}), reply_to=message)

    def train(self, message: Message, context: Context) -> Message:
        """Train from the parameters of the server; answer with one's own."""
        task, exchange = self._begin(message, context)
        trainer, counter = exchange.trainer, _Counter()
        if task.rate:
            trainer.learning_rate = task.rate
        history = trainer.fit(
            self.data(context), epochs=task.epochs, batch_size=task.batch_size, callbacks=[counter], progress=False
        )
        trainer.trained.require_finite()
        measured = {name: value for name, value in history[-1].items() if name not in _NOT_MEASURED}
        key, _ = exchanged(message.content)
        content = RecordDict({key: array_record(PARAMETERS, exchange.parameters())})
        content["metrics"] = _metrics(measured, counter.rows)
        if exchange.has_statistics:
            content[STATISTICS] = array_record(STATISTICS, exchange.statistics())
        return Message(content, reply_to=message)

    def evaluate(self, message: Message, context: Context) -> Message:
        """Test the parameters of the server."""
        task, exchange = self._begin(message, context)
        measured = exchange.trainer.measure(self.evaluation(context), batch_size=task.batch_size)
        return Message(RecordDict({"metrics": _metrics(measured.results(), measured.rows)}), reply_to=message)

    def _begin(self, message: Message, context: Context) -> tuple[Task, Exchange]:
        """A trainer with the parameters of the server."""
        task = Task.of(message)
        seed = task.seed_for(place_of(context))
        exchange = Exchange(made_by(self.make_trainer, seed))
        exchange.require_same(task.layout, task.identity)
        exchange.take_parameters(exchanged(message.content)[1][PARAMETERS].numpy())
        if exchange.has_statistics:
            exchange.take_statistics(statistics_of(message.content))
        return task, exchange


def made_by(make_trainer: MakeTrainer, seed: int) -> Trainer:
    """A new trainer with that seed."""
    trainer = make_trainer(seed)
    if not isinstance(trainer, Trainer):
        raise OnwardError(f"`make_trainer` has to return an onward.Trainer, not {type(trainer).__name__}")
    if trainer.seed != seed:
        raise OnwardError(
            f"`make_trainer` was called with the seed {seed}, but its trainer has {trainer.seed}: give it to "
            "onward.Trainer(..., seed=seed), or all clients draw the same numbers in all rounds"
        )
    return trainer


class _Counter(Callback):
    """How many rows an epoch has, whatever they come from."""

    rows = 0

    def on_epoch_end(self, run: Run) -> None:
        self.rows = run.rows


def _metrics(measured: dict[str, Any], rows: int) -> MetricRecord:
    if not rows:
        raise OnwardError("the data of this client has no rows, so there is nothing to average by")
    return MetricRecord({**{name: float(value) for name, value in measured.items()}, ROWS: rows})

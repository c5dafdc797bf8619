"""The server: sends parameters, averages what comes back, tests and exports the result."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from onward.errors import OnwardError
from onward.federated.client import MakeTrainer, made_by
from onward.federated.exchange import Exchange
from onward.federated.grid import FederatedGrid
from onward.federated.task import PARAMETERS, Task, array_record
from onward.rate import checked_rate
from onward.trainer.trainer import Trainer


def server_app(
    trainer: Trainer | MakeTrainer,
    *,
    rounds: int = 3,
    strategy: Strategy | None = None,
    clients: int = 2,
    epochs: int = 1,
    batch_size: int = 32,
    learning_rate: float | Callable[[int], float] | None = None,
    evaluation: Any = None,
    export: str | os.PathLike[str] | None = None,
    on_end: Callable[[Trainer, Result], Any] | None = None,
    seed: int = 0,
    accept_failures: bool = False,
    timeout: float = 3600.0,
) -> ServerApp:
    """A Flower ServerApp for clients of `client_app`.

    Args:
        trainer: a trainer, whose parameters are the first ones; or the function that makes those of the clients.
        rounds: how often parameters go out and come back.
        strategy: a strategy of `flwr.serverapp.strategy`; by default FedAvg over all clients, weighted by rows.
        clients: for how many clients to wait, where no strategy says it.
        epochs: how often a client goes through its rows in a round.
        batch_size: rows of its batches.
        learning_rate: that of the clients, or a function of the number of the round (1, 2 ...); by default that of
            their trainers.
        evaluation: rows to test with before the first and after each round, as `Trainer.evaluate` takes them.
        export: where the final model is written, as .onnx.
        on_end: called with the trainer, which has the final parameters, and the Result of Flower.
        seed: decides, with the number of the client and of the round, the order of rows and what Dropout draws; also
            which clients a strategy draws.
        accept_failures: go on with the clients that answer, as long as there is one. By default a client that fails
            ends the training, with its reason.
        timeout: for how long to wait for answers, in seconds.
    """
    for name, number in (("rounds", rounds), ("clients", clients), ("epochs", epochs), ("batch_size", batch_size)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise OnwardError(f"`{name}` is a number, at least 1, not {number!r}")
    if strategy is None:
        strategy = FedAvg(min_train_nodes=clients, min_evaluate_nodes=clients, min_available_nodes=clients)
    rate_of = _rates(learning_rate)
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        made = trainer if isinstance(trainer, Trainer) else made_by(trainer, seed)
        exchange = Exchange(made)
        layout, identity = exchange.layout(), exchange.identity

        def task(number: int) -> Task:
            return Task(layout, identity, number, seed, epochs, batch_size, rate_of(number))

        def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
            exchange.take_parameters(arrays[PARAMETERS].numpy())
            return MetricRecord({**made.evaluate(evaluation, batch_size=batch_size)})

        with _seeded(seed):
            result = strategy.start(
                grid=FederatedGrid(grid, exchange, task, accept_failures=accept_failures, timeout=timeout),
                initial_arrays=array_record(PARAMETERS, exchange.parameters()),
                num_rounds=rounds,
                timeout=timeout,
                evaluate_fn=None if evaluation is None else evaluate,
            )
        if PARAMETERS not in result.arrays:
            raise OnwardError(f"{type(strategy).__name__} has averaged nothing, so the model is as it was")
        exchange.take_parameters(result.arrays[PARAMETERS].numpy())
        if export is not None:
            made.export(export)
        if on_end is not None:
            on_end(made, result)

    app.main()(main)
    return app


def _rates(given: float | Callable[[int], float] | None) -> Callable[[int], float]:
    """The learning rate of each round; 0 where trainers have their own."""
    if given is None:
        return lambda number: 0.0
    if callable(given):
        return lambda number: _positive(given(number), f"`learning_rate` of round {number}")
    rate = _positive(given, "`learning_rate`")
    return lambda number: rate


def _positive(rate: float, title: str) -> float:
    if not checked_rate(rate, title):
        raise OnwardError(f"{title} is 0, with which nothing is learned")
    return float(rate)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Strategies draw clients by Python's own generator, which is as it was afterwards."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)

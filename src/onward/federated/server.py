"""The server: sends parameters, averages what comes back, tests and exports the result."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from onward.errors import OnwardError
from onward.federated.client import MakeTrainer, made_by
from onward.federated.exchange import Exchange
from onward.federated.grid import FederatedGrid
from onward.federated.rounds import Rounds
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
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
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
        checkpoint: a file that is written after each round, with the parameters and all that the server remembers.
        resume: go on from `checkpoint`, if it is there, to the end of `rounds`. With a strategy that remembers nothing
            between rounds, such as FedAvg, the result is bit for bit what it would have been.
    """
    for name, number in (("rounds", rounds), ("clients", clients), ("epochs", epochs), ("batch_size", batch_size)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise OnwardError(f"`{name}` is a number, at least 1, not {number!r}")
    if strategy is None:
        strategy = FedAvg(min_train_nodes=clients, min_evaluate_nodes=clients, min_available_nodes=clients)
    if not isinstance(strategy, Strategy):
        raise OnwardError(f"`strategy` is an object of flwr.serverapp.strategy, such as FedAvg(), not {strategy!r}")
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise OnwardError(f"`timeout` is a number of seconds, more than 0, not {timeout!r}")
    if resume and checkpoint is None:
        raise OnwardError("`resume` goes on from a file: give `checkpoint`, too")
    server = _Server(
        trainer=trainer,
        strategy=strategy,
        rounds=rounds,
        epochs=epochs,
        batch_size=batch_size,
        rate_of=_rates(learning_rate),
        evaluation=evaluation,
        export=export,
        on_end=on_end,
        seed=seed,
        accept_failures=accept_failures,
        timeout=timeout,
        checkpoint=checkpoint,
        resume=resume,
    )
    app = ServerApp()
    app.main()(server.main)
    return app


@dataclass(frozen=True)
class _Server:
    """What a server does when it is started; `server_app` says what its fields are."""

    trainer: Trainer | MakeTrainer
    strategy: Strategy
    rounds: int
    epochs: int
    batch_size: int
    rate_of: Callable[[int], float]
    evaluation: Any
    export: str | os.PathLike[str] | None
    on_end: Callable[[Trainer, Result], Any] | None
    seed: int
    accept_failures: bool
    timeout: float
    checkpoint: str | os.PathLike[str] | None
    resume: bool

    def main(self, grid: Grid, context: Context) -> None:
        """Train, and hand over the result."""
        if self.export is not None and not Path(self.export).absolute().parent.is_dir():
            raise OnwardError(
                f"`export`: {str(self.export)!r} could not be written in the end: there is no directory "
                f"{str(Path(self.export).parent)!r}"
            )
        made = self.trainer if isinstance(self.trainer, Trainer) else made_by(self.trainer, self.seed)
        exchange = Exchange(made)
        with _seeded(self.seed):
            rounds = Rounds(made, self.checkpoint, self._settings(exchange))
            rounds.begin(resume=self.resume)
            result = self._trained(grid, exchange, rounds)
        exchange.take_parameters(result.arrays[PARAMETERS].numpy())
        if self.export is not None:
            made.export(self.export)
        if self.on_end is not None:
            self.on_end(made, result)

    def _settings(self, exchange: Exchange) -> dict[str, Any]:
        """What has to be the same for a federation to go on."""
        return {
            "the model": exchange.identity,
            "strategy": type(self.strategy).__name__,
            "seed": self.seed,
            "epochs": self.epochs,
            "batch_size": self.batch_size,
        }

    def _trained(self, grid: Grid, exchange: Exchange, rounds: Rounds) -> Result:
        """What the strategy makes of the rounds that are left."""
        done, first = rounds.done, array_record(PARAMETERS, exchange.parameters())
        if done >= self.rounds:
            return Result(first)
        layout, identity = exchange.layout(), exchange.identity

        def task(number: int) -> Task:
            return Task(layout, identity, number, self.seed, self.epochs, self.batch_size, self.rate_of(number))

        def settle(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            """What is done before the first and after each round."""
            exchange.take_parameters(arrays[PARAMETERS].numpy())
            if number:
                rounds.save(done + number)
            if self.evaluation is None:
                return None
            return MetricRecord({**exchange.trainer.evaluate(self.evaluation, batch_size=self.batch_size)})

        ours = FederatedGrid(
            grid, exchange, task, accept_failures=self.accept_failures, timeout=self.timeout, done=done
        )
        result = self.strategy.start(
            grid=ours,
            initial_arrays=first,
            num_rounds=self.rounds - done,
            timeout=self.timeout,
            evaluate_fn=None if self.evaluation is None and self.checkpoint is None else settle,
        )
        if PARAMETERS not in result.arrays:
            raise OnwardError(f"{type(self.strategy).__name__} has averaged nothing, so the model is as it was")
        return _numbered_from(result, done)


def _numbered_from(result: Result, done: int) -> Result:
    """Rounds by their numbers among all of them."""
    kinds = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")
    for kind in kinds:
        setattr(result, kind, {done + number: metrics for number, metrics in getattr(result, kind).items()})
    return result


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

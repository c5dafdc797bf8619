"""Trainings that one process runs, and two do: each returns what has to be the same, or what there is to say about it.

The two processes run all of them one after the other (`worker.py`), also those in which something goes wrong: whatever
happens, they have to be ready for the next.
"""

from __future__ import annotations

import functools
import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from onnx import numpy_helper

import onward
from onward.callbacks import Callback, Checkpoints, CSVLog, EarlyStopping, Lambda
from onward.trainer.strategy import Strategy
from tests.trainer.toys import classifier, labelled, regressor

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


# Equal to one process ------------------------------------------------------------------------------------------------


@scenario
def equal_shards(strategy: Strategy | None, folder: Path) -> Any:
    """One process adds two halves of a batch up; two have one half each. Halves of numbers are exact."""
    trainer = fast(
        classifier(), optimizer="adamw", clip=0.1, strategy=strategy, accumulate=2 if strategy is None else 1,
        schedule="cosine",
    )  # fmt: skip
    trainer.fit(*labelled(64), epochs=3, batch_size=8 if strategy is None else 16, **quiet)
    return everything(trainer)


@scenario
def exact_arithmetic(strategy: Strategy | None, folder: Path) -> Any:
    """Small numbers that are sums of powers of two: all arithmetic is exact, in any order."""
    model = regressor()
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(np.ones(tensor.dims, np.float32), tensor.name))
    random = np.random.default_rng(0)
    x = random.integers(-2, 3, (16, 4)).astype(np.float32)
    y = random.integers(-2, 3, (16, 1)).astype(np.float32)
    trainer = onward.Trainer(model, "mse", "sgd", learning_rate=2.0**-4, strategy=strategy)
    trainer.fit(x, y, batch_size=8, **quiet)
    return everything(trainer)


@scenario
def batches_dealt_out(strategy: Strategy | None, folder: Path) -> Any:
    """Batches of the user's own: each process takes every second one."""
    x, y = labelled(72)
    batches = [(x[start : start + 8], y[start : start + 8]) for start in range(0, 72, 8)]
    trainer = fast(classifier(), optimizer="adamw", strategy=strategy, accumulate=2 if strategy is None else 1)
    trainer.fit(batches, epochs=2, **quiet)
    return everything(trainer)


@scenario
def unequal_shards(strategy: Strategy | None, folder: Path) -> Any:
    """Batches of 7 rows, the last one of 1, and a part for validation."""
    trainer = fast(
        classifier(), optimizer="adamw", strategy=strategy, clip=0.5,
        metrics={"accuracy": "accuracy", "f1": "f1", "auc": "auc", "log_loss": "log_loss", "error": error_rate},
    )  # fmt: skip
    trainer.fit(*labelled(98), epochs=3, batch_size=7, validation=0.275, **quiet)
    return everything(trainer), trainer.evaluate(*labelled(31, seed=1), batch_size=10)


def error_rate(scores: np.ndarray, y: np.ndarray) -> float:
    return float((scores.argmax(1) != y).mean())


@scenario
def ignored_labels(strategy: Strategy | None, folder: Path) -> Any:
    """In the first batch, the first process has no label that counts; in the others, fewer than the second."""
    x, y = labelled(40)
    y[:5] = -100
    y[10:12] = -100
    loss = functools.partial(onward.losses.cross_entropy, ignore_index=-100)
    trainer = fast(classifier(), loss=loss, optimizer="sgd", strategy=strategy, metrics=["accuracy"])
    trainer.fit(x, y, epochs=2, batch_size=10, shuffle=False, **quiet)
    return everything(trainer)


@scenario
def weighted_rows(strategy: Strategy | None, folder: Path) -> Any:
    """Weights of rows, all 0 in one part, and two batches for each update."""
    x, y = labelled(46)
    weights = np.random.default_rng(2).uniform(0, 3, 46).astype(np.float32)
    weights[:4] = 0
    trainer = fast(
        classifier(), optimizer="adamw", strategy=strategy, sample_weight=True, accumulate=2, metrics=["accuracy"]
    )
    trainer.fit(x, y, epochs=2, batch_size=8, sample_weight=weights, shuffle=False, **quiet)
    return everything(trainer)


@scenario
def sum_of_rows(strategy: Strategy | None, folder: Path) -> Any:
    loss = functools.partial(onward.losses.mse, reduction="sum")
    x = np.random.default_rng(3).normal(size=(27, 4)).astype(np.float32)
    trainer = onward.Trainer(regressor(), loss, "sgd", learning_rate=0.01, strategy=strategy, metrics=["r2", "mae"])
    trainer.fit(x, x.sum(1, keepdims=True), epochs=2, batch_size=5, **quiet)
    return everything(trainer), trainer.evaluate(x, x.sum(1, keepdims=True))


@scenario
def early_stopping(strategy: Strategy | None, folder: Path) -> Any:
    stopping = EarlyStopping("val_loss", patience=1, min_delta=0.02, restore_best=True)
    trainer = fast(classifier(), optimizer="sgd", strategy=strategy)
    validation = labelled(20, seed=1)
    trainer.fit(*labelled(40), epochs=30, batch_size=10, validation=validation, callbacks=[stopping], **quiet)
    return everything(trainer), stopping.best_epoch, stopping.stopped


@scenario
def search_of_a_rate(strategy: Strategy | None, folder: Path) -> Any:
    trainer = fast(classifier(), optimizer="sgd", strategy=strategy)
    before = trainer.snapshot()
    found = trainer.find_learning_rate(*labelled(64), steps=20, batch_size=16, highest=1e4)
    same = all(np.array_equal(before[name], x) for name, x in trainer.snapshot().items())
    return found.losses, same


# Continued -----------------------------------------------------------------------------------------------------------


def noisy(strategy: Strategy | None) -> onward.Trainer:
    """A model that draws, has statistics, measures, and adds batches up."""
    made: onward.Trainer = fast(
        classifier(dropout=True, normalised=True), optimizer="adamw", metrics=["accuracy", "auc"], accumulate=2,
        schedule=("reduce_on_plateau", {"patience": 0}), strategy=strategy,
    )  # fmt: skip
    return made


def rehearsed(trainer: onward.Trainer, folder: Path | None, *callbacks: Callback, resume: bool = False) -> None:
    given = [EarlyStopping("val_loss", patience=20, restore_best=True), *callbacks]
    if folder is not None:
        given.append(Checkpoints(folder, every=1, keep=3))
    trainer.fit(
        *labelled(43), epochs=3, batch_size=6, validation=labelled(9, seed=1), callbacks=given, resume=resume, **quiet
    )


def break_at(step: int, strategy: Strategy | None, rank: int) -> Callback:
    def breaks(run: Any) -> None:
        if run.step == step and rank_of(strategy) == rank:
            raise ValueError(f"step {step} is enough")

    return Lambda(on_step_end=breaks)


@scenario
def continued(strategy: Strategy | None, folder: Path) -> Any:
    """Broken off in one process, and continued by a new trainer, in all: bit for bit what would have been."""
    whole = noisy(strategy)
    rehearsed(whole, None)
    error = failure(lambda: rehearsed(noisy(strategy), folder / "parts", break_at(6, strategy, 1)))
    again = noisy(strategy)
    rehearsed(again, folder / "parts", resume=True)
    return everything(whole), everything(again), error


@scenario
def continued_in_memory(strategy: Strategy | None, folder: Path) -> Any:
    whole, broken = noisy(strategy), noisy(strategy)
    rehearsed(whole, None)
    breaking = break_at(5, strategy, 0)
    error = failure(lambda: rehearsed(broken, None, breaking))
    rehearsed(broken, None, resume=True)
    return everything(whole), everything(broken), error


@scenario
def left_for_one(strategy: Strategy | None, folder: Path) -> Any:
    """What two processes have saved in the middle of an epoch, for one to continue; here, the whole of it."""
    fit: Any = functools.partial(fast, classifier(), optimizer="adamw", metrics=["accuracy"], strategy=strategy)
    given = {"epochs": 3, "batch_size": 10, **quiet}
    broken = fit()
    callbacks = [Checkpoints(folder / "left", every=1), break_at(7, strategy, 0)]
    failure(lambda: broken.fit(*labelled(48), callbacks=callbacks, **given))
    whole = fit()
    whole.fit(*labelled(48), **given)
    return everything(whole), broken.steps


# What processes do not have in common ---------------------------------------------------------------------------------


@scenario
def drawn_at_random(strategy: Strategy | None, folder: Path) -> Any:
    """Each process makes its own first weights, and another seed: those of the first count."""
    model = classifier(dropout=True)
    random = np.random.default_rng(100 + rank_of(strategy))
    for tensor in model.graph.initializer[:4]:
        weight = random.normal(size=tuple(tensor.dims)).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(weight, tensor.name))
    trainer = fast(model, optimizer="adamw", strategy=strategy, seed=rank_of(strategy))
    return trainer.snapshot(), trainer._seed, trainer._model.state.random.seed


@scenario
def normalised(strategy: Strategy | None, folder: Path) -> Any:
    """Each process normalises its own rows; running statistics are the means of both."""
    trainer = fast(classifier(normalised=True), optimizer="sgd", strategy=strategy)
    trainer.fit(*labelled(8), batch_size=8, shuffle=False, **quiet)
    first = trainer.snapshot()
    trainer.fit(*labelled(31), epochs=2, batch_size=8, **quiet)
    return first, everything(trainer)


@sharded
def masks(strategy: Strategy | None, folder: Path) -> Any:
    """The same rows in both: the masks of Dropout differ."""
    trainer = fast(classifier(dropout=True), optimizer="sgd", strategy=strategy, seed=5)
    other = fast(classifier(dropout=True), optimizer="sgd", seed=trainer._model.state.random.seed_of(1), strategy=None)
    return trainer.train_step(labelled(50)), other.train_step(labelled(50))


@sharded
def data_of_their_own(strategy: Strategy | None, folder: Path) -> Any:
    """The first process has 16 rows, the second 40: when the first has none left, the second goes on."""
    x, y = labelled(56)
    bounds = (0, 16, 56)
    trainer = fast(classifier(), optimizer="adamw", strategy=strategy, metrics=["accuracy"])
    if strategy is None:
        parts = [[(x[a:b], y[a:b]) for a, b in ((start, start + 8) for start in range(*ends, 8))]
                 for ends in ((0, 16), (16, 56))]  # fmt: skip
        joined = [parts[0][i] + parts[1][i] if i < 2 else parts[1][i] for i in range(5)]
        batches = [(np.concatenate(b[0::2]), np.concatenate(b[1::2])) for b in joined]
        trainer.fit(batches, epochs=2, **quiet)
        return everything(trainer), trainer.evaluate(x, y)
    start, end = bounds[strategy.rank], bounds[strategy.rank + 1]
    trainer.fit(x[start:end], y[start:end], epochs=2, batch_size=8, shuffle=False, **quiet)
    return everything(trainer), trainer.evaluate(x[start:end], y[start:end])


@sharded
def sampler_of_torch(strategy: Strategy | None, folder: Path) -> Any:
    """A DistributedSampler divides the data already, which has to be said."""
    import torch
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    x, y = labelled(32)
    data = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    trainer = fast(classifier(), optimizer="adamw", strategy=strategy, accumulate=2 if strategy is None else 1)
    if strategy is None:  # of two processes in turn
        order = [row for start in range(0, 32, 16) for rank in (0, 1) for row in range(start + rank, start + 16, 2)]
        trainer.fit(x[order], y[order], batch_size=8, shuffle=False, **quiet)
        return everything(trainer)
    sampler: Any = DistributedSampler(data, strategy.size, strategy.rank, shuffle=False)
    trainer.fit(DataLoader(data, 8, sampler=sampler), **quiet)
    return everything(trainer)


# What goes wrong ------------------------------------------------------------------------------------------------------


def stop_at(step: int, me: bool, run: Any) -> None:
    if me and run.step == step:
        run.stop("by one")


@scenario
def stopped_by_one(strategy: Strategy | None, folder: Path) -> Any:
    """A callback of one process stops training: after a step in the middle, after the last of an epoch, or its end."""
    found = []
    for rank in (0, 1):
        for hook, step in (("on_step_end", 3), ("on_step_end", 4), ("on_epoch_end", 4), ("on_settled", 4)):
            trainer = fast(classifier(), optimizer="sgd", strategy=strategy)
            stop = Lambda(**{hook: functools.partial(stop_at, step, rank_of(strategy) == rank)})
            trainer.fit(*labelled(16), epochs=3, batch_size=4, callbacks=[stop], **quiet)
            found.append((trainer.steps, trainer.epochs))
    return found


@scenario
def error_in_one(strategy: Strategy | None, folder: Path) -> Any:
    """In a callback, in the data, and in what is given to the Trainer."""
    trainer = fast(classifier(), optimizer="sgd", strategy=strategy)

    def data() -> Any:
        yield labelled(4)
        yield labelled(4)
        if rank_of(strategy) == 1:
            raise OSError("the disk is gone")
        yield labelled(4)
        yield labelled(4)

    x, y = labelled(16)
    if strategy is not None:
        first = failure(lambda: trainer.fit(x, y, callbacks=[break_at(2, strategy, 1)], batch_size=4, **quiet))
        second = failure(lambda: trainer.fit(data, **quiet))
        third = failure(lambda: fast("missing.onnx" if strategy.rank == 1 else classifier(), strategy=strategy))
        return first, second, third, trainer.steps
    return None


@scenario
def interrupted(strategy: Strategy | None, folder: Path) -> Any:
    """Ctrl-C in one process only, while it waits for data, and while the other is in a step."""

    def data(rank: int) -> Any:
        for number in range(4):
            if number == 2 and rank_of(strategy) == rank and strategy is not None:
                os.kill(os.getpid(), signal.SIGINT)
            yield labelled(4)

    found = []
    for rank in (0, 1):
        trainer = fast(classifier(), optimizer="sgd", strategy=strategy)
        place = folder / f"interrupted{rank}"
        call = functools.partial(trainer.fit, functools.partial(data, rank), prefetch=0, directory=place, **quiet)
        found.append((failure(call), trainer.steps))
    return found


@scenario
def not_a_number(strategy: Strategy | None, folder: Path) -> Any:
    """A row of the second process is not finite."""
    x, y = labelled(16)
    x[7] = np.nan
    trainer = fast(classifier(normalised=True, dropout=True), optimizer="sgd", strategy=strategy)
    before = trainer.snapshot()
    error = failure(lambda: trainer.fit(x, y, batch_size=8, shuffle=False, **quiet))
    same = all(np.array_equal(before[name], array) for name, array in trainer.snapshot().items())
    trainer.fit(*labelled(16), batch_size=8, **quiet)
    return error, same, trainer.steps


@scenario
def at_odds(strategy: Strategy | None, folder: Path) -> Any:
    """Different calls, data, rates, models, all of which would hang or be wrong; parameters that were changed."""
    if strategy is None:
        return None
    trainer = fast(classifier(), optimizer="sgd", strategy=strategy)
    x, y = labelled(16)
    calls = failure((lambda: trainer.save(folder / "x")) if strategy.rank else (lambda: trainer.evaluate(x, y)))
    rows = failure(lambda: trainer.fit(x[strategy.rank :], y[strategy.rank :], **quiet))
    trainer.learning_rate = 0.1 * (1 + strategy.rank)
    rates = failure(lambda: trainer.fit(x, y, **quiet))
    trainer.learning_rate = 0.1
    models = failure(lambda: fast(classifier(dropout=strategy.rank == 1), strategy=strategy))
    if strategy.rank == 1:
        trainer.restore({name: array + 1 for name, array in trainer.snapshot().items()})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer.fit(x, y, **quiet)
    return calls, rows, rates, models, [str(one.message) for one in said], trainer.snapshot()


@scenario
def files(strategy: Strategy | None, folder: Path) -> Any:
    """Written by the first process; `load` takes what it reads to all of them, also where there is no file."""
    mine = folder / f"rank{rank_of(strategy)}"
    mine.mkdir()
    trainer = fast(classifier(), optimizer="adamw", strategy=strategy)
    trainer.fit(*labelled(16), batch_size=4, callbacks=[CSVLog(mine / "log.csv"), Checkpoints(mine / "c")], **quiet)
    trainer.save(mine / "saved")
    trainer.export(mine / "model.onnx")
    other = fast(classifier(), optimizer="adamw", strategy=strategy)
    other.load(mine / "saved")
    wrong = failure(lambda: trainer.export(folder / "missing" / "folder" / "model.onnx"))
    return sorted(path.name for path in mine.iterdir()), everything(trainer), everything(other), wrong


@scenario
def without_a_copy(strategy: Strategy | None, folder: Path) -> Any:
    """torch adds up the very memory that onnxruntime has written, in one operation for each step."""
    if strategy is None:
        return None
    trainer = fast(classifier(), optimizer="sgd", strategy=strategy)
    gradients = trainer._model.module.gradients
    (buffer,) = strategy._buffers(gradients)  # type: ignore[attr-defined]
    counted: list[str] = []
    wait = strategy._wait  # type: ignore[attr-defined]
    strategy._wait = lambda name, *args, **kw: (counted.append(name), wait(name, *args, **kw))  # type: ignore[attr-defined]
    trainer.train_step(labelled(8))
    del strategy._wait  # type: ignore[attr-defined]
    (dtype,) = gradients.dtypes
    return buffer.data_ptr() == gradients.whole_array(dtype).ctypes.data, counted

"""What goes wrong in one process, and what only the first one does."""

from __future__ import annotations

import functools
import os
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from onward.callbacks import Checkpoints, CSVLog, Lambda
from onward.trainer.strategy import Strategy
from tests.distributed.scenarios.registry import break_at, everything, failure, fast, quiet, rank_of, scenario
from tests.trainer.toys import classifier, labelled


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
    """Different calls, data, rates, models, metrics, all of which would hang or be wrong; parameters that were changed.

    These are changed before training, and by a callback when it has ended.
    """
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
    other = fast(classifier(), strategy=strategy, metrics=["accuracy", "f1"][strategy.rank :])
    metrics = failure(lambda: other.fit(x, y, **quiet)), failure(lambda: other.evaluate(x, y))

    def change(_: Any = None) -> None:
        if strategy.rank == 1:
            trainer.restore({name: array + 1 for name, array in trainer.snapshot().items()})

    change()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer.fit(x, y, callbacks=[Lambda(on_fit_end=change)], **quiet)
    return calls, rows, rates, models, metrics, other.steps, [str(one.message) for one in said], trainer.snapshot()


@scenario
def other_data(strategy: Strategy | None, folder: Path) -> Any:
    """As many rows in each, but others: a split that each has drawn by itself, and an order that differs."""
    if strategy is None:
        return None
    trainer = fast(classifier(), optimizer="sgd", strategy=strategy)
    x, y = labelled(40)
    mine = np.random.default_rng(strategy.rank).permutation(40)[:16]
    order = lambda epoch: np.random.default_rng(epoch * strategy.rank).permutation(40)  # noqa: E731
    rounded = x * np.float32(1 + 1e-6 * strategy.rank)  # by another machine
    return (
        failure(lambda: trainer.fit(x[mine], y[mine], **quiet)),
        failure(lambda: trainer.evaluate(x[mine], y[mine])),
        failure(lambda: trainer.fit(x, y, validation=(x[mine], y[mine]), **quiet)),
        failure(lambda: trainer.evaluate(x[strategy.rank :], y[strategy.rank :])),
        failure(lambda: trainer.fit(x, y, shuffle=order, epochs=2, **quiet)),
        trainer.steps,
        failure(lambda: trainer.evaluate(rounded, y))[0],
    )


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


@scenario
def hangs(strategy: Strategy | None, folder: Path) -> Any:
    """One process does not come to the next step in time."""
    if strategy is None:
        return None
    from onward.torch import Distributed

    trainer = fast(classifier(), optimizer="sgd", strategy=Distributed(timeout=3))
    sleep = Lambda(on_step_end=lambda run: time.sleep(5 if strategy.rank == 1 and run.step == 2 else 0))
    return failure(lambda: trainer.fit(*labelled(16), batch_size=4, callbacks=[sleep], **quiet))

"""Equal to one process on the joined batch."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
from onnx import numpy_helper

import onward
from onward.callbacks import Checkpoints, EarlyStopping
from onward.trainer.strategy import Strategy
from tests.distributed.scenarios.registry import everything, fast, quiet, scenario
from tests.trainer.toys import classifier, labelled, regressor


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
def accumulated_and_clipped(strategy: Strategy | None, folder: Path) -> Any:
    """Three batches for each update, the last one incomplete, of gradients far above the bound; or one large batch."""
    together = strategy is not None
    trainer = fast(classifier(), optimizer="adamw", clip=0.01, accumulate=3 if together else 1, strategy=strategy)
    trainer.fit(*labelled(55), epochs=2, batch_size=6 if together else 18, shuffle=False, **quiet)
    return everything(trainer)


@scenario
def best_checkpoints(strategy: Strategy | None, folder: Path) -> Any:
    """Which epochs were best is decided by numbers of all rows."""
    kept = Checkpoints(folder / f"best of {1 if strategy is None else strategy.size}", keep_best=2, monitor="val_f1")
    trainer = fast(classifier(), optimizer="sgd", strategy=strategy, metrics=["f1"], learning_rate=1.0)
    trainer.fit(*labelled(30), epochs=6, batch_size=7, validation=labelled(11, seed=1), callbacks=[kept], **quiet)
    best = [path.name for path in kept.best]
    return (
        everything(trainer),
        [row["val_f1"] for row in trainer.history.epochs],
        best if trainer.strategy.rank == 0 else None,
    )


@scenario
def order_of_its_own(strategy: Strategy | None, folder: Path) -> Any:
    """A function says in which order rows come, and draws it anew whenever it is called."""
    random = np.random.default_rng(4)
    trainer = fast(classifier(), optimizer="adamw", strategy=strategy)
    trainer.fit(*labelled(20), epochs=3, batch_size=8, shuffle=lambda epoch: random.permutation(20)[:17], **quiet)
    return everything(trainer)


MEASURED = {"accuracy": "accuracy", "f1": "f1", "auc": "auc", "log_loss": "log_loss", "error": error_rate}


@scenario
def measured(strategy: Strategy | None, folder: Path) -> Any:
    """Of parts that are uneven, or empty in all batches of one process; of labels that count in one process only."""
    trainer = fast(classifier(), optimizer="sgd", strategy=strategy, metrics=MEASURED)
    found = [
        (tested.rows, tested.results())
        for rows, batch in ((31, 10), (31, 31), (9, 1), (1, 32), (3, 2))
        for tested in [trainer.measure(labelled(rows), batch_size=batch)]
    ]
    x, y = labelled(10)
    y[:5] = -100
    loss = functools.partial(onward.losses.cross_entropy, ignore_index=-100)
    ignoring = fast(classifier(), loss=loss, strategy=strategy)
    weighing = fast(classifier(), strategy=strategy, sample_weight=True, metrics=["accuracy"])
    weights = np.r_[np.zeros(6), np.arange(4)].astype(np.float32)
    total = onward.Trainer(
        regressor(), functools.partial(onward.losses.mse, reduction="sum"), strategy=strategy, metrics=["r2", "mae"]
    )
    return [
        *found,
        ignoring.evaluate(x, y),
        weighing.evaluate(x, labelled(10)[1], sample_weight=weights, batch_size=3),
        total.evaluate(x, x[:, :1], batch_size=1),
    ]


@scenario
def search_of_a_rate(strategy: Strategy | None, folder: Path) -> Any:
    trainer = fast(classifier(), optimizer="sgd", strategy=strategy)
    before = trainer.snapshot()
    found = trainer.find_learning_rate(*labelled(64), steps=20, batch_size=16, highest=1e4)
    same = all(np.array_equal(before[name], x) for name, x in trainer.snapshot().items())
    return found.losses, same

"""What processes do not have in common: first weights, seeds, statistics, masks, data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import numpy_helper

from onward.trainer.strategy import Strategy
from tests.distributed.scenarios.registry import everything, failure, fast, quiet, rank_of, scenario, sharded
from tests.trainer.toys import classifier, labelled


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
def measured_of_their_own(strategy: Strategy | None, folder: Path) -> Any:
    """One process has 3 rows, the other 28; then none at all, which is said."""
    bounds = (0, 3, 31)
    x, y = labelled(31)
    trainer = fast(classifier(), optimizer="sgd", strategy=strategy, metrics=["accuracy", "auc", "f1", "log_loss"])
    if strategy is None:
        tested = trainer.measure((x, y), batch_size=5)
        return tested.rows, tested.results()
    mine = slice(bounds[strategy.rank], bounds[strategy.rank + 1])
    tested = trainer.measure((x[mine], y[mine]), batch_size=5)
    nothing = failure(lambda: trainer.evaluate(*labelled(4 * strategy.rank)))
    return tested.rows, tested.results(), nothing


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

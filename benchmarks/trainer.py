"""`Trainer.fit` against a loop written by hand over `onward.api`: `python -m benchmarks.trainer mlp cnn`.

Both train on the same batches from the same weights, epochs by turns; their losses have to agree first. Printed are the
median times of a step, and the median of the ratios of neighbours.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import onward
from benchmarks import works
from benchmarks.protocol import EPSILON, WEIGHT_DECAY
from benchmarks.worker_ort import OnnxRuntime

EPOCH = 64  # steps
Epoch = Callable[[], list[float]]  # trains, and returns the losses


def by_hand(folder: Path, threads: int) -> Epoch:
    """The loop of docs/training.md, which looks at each loss."""
    worker = OnnxRuntime(folder, threads)
    worker.import_builder()
    worker.build()
    order = _order(worker)
    worker.x, worker.y = worker.x[order], worker.y[order]  # from memory that is as large as the other's
    step = worker.load()
    return lambda: [float(step(index)) for index in range(EPOCH)]


def by_trainer(folder: Path, threads: int) -> Epoch:
    worker = OnnxRuntime(folder, threads)
    trainer = onward.Trainer(
        folder / "forward.onnx",
        "cross_entropy",
        onward.optim.adamw_hf(eps=EPSILON, weight_decay=WEIGHT_DECAY),
        learning_rate=worker.work["learning_rate"],
        trainable=worker.work["trainable"],
        session_options=worker._options(),
    )
    order = _order(worker)
    if worker.x.shape[1] == worker.y.shape[1]:
        data = (np.concatenate(worker.x[order]), np.concatenate(worker.y[order]))
    else:  # labels of tokens, which are more than the rows
        data = [(worker.x[index], worker.y[index]) for index in order]

    def epoch() -> list[float]:
        before = len(trainer.history.losses)
        trainer.fit(data, batch_size=worker.x.shape[1], shuffle=False, progress=False)
        return trainer.history.losses[before:]

    return epoch


def _order(worker: OnnxRuntime) -> list[int]:
    return [index % len(worker.x) for index in range(EPOCH)]


def compare(name: str, threads: int, rounds: int) -> str:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        works.write(name, folder)
        hand, trainer = by_hand(folder, threads), by_trainer(folder, threads)
        np.testing.assert_allclose(trainer()[:5], hand()[:5], rtol=2e-3)
        pairs = [(_time(hand), _time(trainer)) for _ in range(rounds)]
    ratio = statistics.median(second / first for first, second in pairs)
    first, second = (statistics.median(times) / EPOCH * 1e3 for times in zip(*pairs, strict=True))
    return f"{name:12} by hand {first:8.3f} ms a step   Trainer.fit {second:8.3f} ms   ratio {ratio:.3f}"


def _time(epoch: Epoch) -> float:
    start = time.perf_counter()
    epoch()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("works", nargs="*", default=["mlp"], help=f"of {', '.join(works.WORKS)}")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=21)
    given = parser.parse_args()
    for name in given.works or ["mlp"]:
        print(compare(name, given.threads, given.rounds), flush=True)


if __name__ == "__main__":
    main()

"""The passes of an estimator over its data: onward's one loop, with the words of onnxcustom."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from onward.callbacks.base import Callback, Run
from onward.trainer.loop import Loop


@dataclass(frozen=True)
class Batch:
    """Features, labels and maybe weights of some rows."""

    values: tuple[Any, ...]
    rows: int


class _Passes:
    """Batches of a data loader."""

    steps = None

    def __init__(self, batches: Callable[[], Iterator[tuple[Any, ...]]], rows: int) -> None:
        self._batches, self._rows = batches, rows

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        for values in self._batches():
            yield Batch(values, self._rows)


class _Learner:
    """Learns from one batch at a time; losses are sums over rows."""

    def __init__(self, learn: Callable[[Batch], float]) -> None:
        self._learn = learn

    def learn(self, batches: Sequence[Batch]) -> tuple[float, float]:
        (batch,) = batches
        return self._learn(batch) / batch.rows, batch.rows


class _AfterPass(Callback):
    """Tells an estimator of the end of a pass."""

    def __init__(self, passes: int, verbose: int, after: Callable[[int, float], float]) -> None:
        self._passes, self._verbose, self._after = passes, verbose, after
        self._bar: Any = None

    def on_fit_begin(self, run: Run) -> None:
        if self._verbose > 0:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=self._passes)

    def on_epoch_end(self, run: Run) -> None:
        loss = run.logs["loss"]
        rate = self._after(run.epoch, loss)
        if self._bar is not None:
            if self._verbose > 1:
                self._bar.set_description(f"loss={loss:1.3g} lr={rate:1.3g}")
            self._bar.update()

    def on_fit_end(self, run: Run) -> None:
        if self._bar is not None:
            self._bar.close()


def run_passes(
    learn: Callable[[Batch], float],
    batches: Callable[[], Iterator[tuple[Any, ...]]],
    rows: int,
    *,
    passes: int,
    verbose: int,
    after: Callable[[int, float], float],
) -> None:
    """Make `passes` passes.

    Args:
        learn: makes one step, and returns the sum of the losses of its rows.
        batches: the batches of a pass.
        rows: how many rows each of them has.
        after: called with the number and the mean loss of a pass; returns the learning rate of the next.
    """
    # Nothing is prepared ahead: rows are drawn from numpy.random, which others may draw from between two passes.
    loop = Loop(
        _Learner(learn),
        _Passes(batches, rows),
        epochs=passes,
        callbacks=[_AfterPass(passes, verbose, after)],
        prefetch=0,
    )
    loop.run()

"""How training is going: a bar on a terminal or in a notebook, a line for each epoch in a log."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

from onward.callbacks.base import Callback, Run
from onward.errors import OnwardError

logger = logging.getLogger("onward.trainer")

_PAUSE = 0.1  # seconds between two changes of what the bar says


def progress_callback(progress: bool | None) -> Callback:
    """A bar if wanted, or for None if somebody can see it; else lines in the log."""
    if progress or (progress is None and _is_watched()):
        try:
            from tqdm.auto import tqdm
        except ImportError as error:
            if progress:
                raise OnwardError("a progress bar needs the package tqdm: pip install tqdm") from error
        else:
            return Bar(tqdm)
    return Log()


def _is_watched() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if type(shell).__name__ == "ZMQInteractiveShell":  # a notebook
        return True
    return bool(getattr(sys.stderr, "isatty", lambda: False)())


class Bar(Callback):
    """A bar of tqdm for each epoch, which becomes a line when it is over: a terminal cuts bars at its width."""

    first_only = True

    def __init__(self, tqdm: Any) -> None:
        self._tqdm = tqdm
        self._bar: Any = None

    def on_epoch_begin(self, run: Run) -> None:
        self._close()
        title = f"epoch {run.epoch + 1}/{run.epochs}"
        self._bar = self._tqdm(total=run.batches, initial=run.batch, desc=title, unit="batch", leave=True)
        self._rows, self._since, self._shown = run.rows, time.perf_counter(), 0.0

    def on_step_end(self, run: Run) -> None:
        self._bar.update(run.batch - self._bar.n)
        now = time.perf_counter()
        if now - self._shown >= _PAUSE:
            self._show(run)

    def on_epoch_end(self, run: Run) -> None:
        self._bar.update(run.batch - self._bar.n)
        self._show(run)
        in_terminal = not hasattr(self._bar, "container")  # a notebook's bar is as wide as it has to be
        if in_terminal:
            self._bar.leave = False
        self._close()
        if in_terminal:
            self._tqdm.write(line(run), file=sys.stderr)

    def on_fit_end(self, run: Run) -> None:
        self._close()

    def _show(self, run: Run) -> None:
        self._shown = time.perf_counter()
        speed = (run.rows - self._rows) / max(self._shown - self._since, 1e-9)
        parts = described(run.logs)
        if run.rate is not None and "rate" not in run.logs:
            parts["rate"] = f"{run.rate:.3g}"
        parts["samples/s"] = f"{speed:.0f}"
        self._bar.set_postfix(parts, refresh=False)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class Log(Callback):
    """A line for each epoch."""

    first_only = True

    def on_epoch_end(self, run: Run) -> None:
        speed = run.rows / max(run.logs.get("seconds", 0.0), 1e-9)
        logger.info("%s, %.0f samples/s", line(run), speed)


def line(run: Run) -> str:
    """An epoch that is over, in a line."""
    said = ", ".join(f"{name} {value}" for name, value in described(run.logs).items())
    return f"epoch {run.epoch + 1}/{run.epochs}: {said}"


def described(logs: dict[str, Any]) -> dict[str, str]:
    """The numbers of an epoch as texts."""
    numbers = {name: value for name, value in logs.items() if isinstance(value, (int, float)) and name != "seconds"}
    return {name: f"{value:.3g}" if name == "rate" else f"{value:.4f}" for name, value in numbers.items()}

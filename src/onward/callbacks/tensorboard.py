"""The history for TensorBoard."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from onward.callbacks.base import Callback, Run
from onward.errors import OnwardError


class TensorBoard(Callback):
    """Writes events that TensorBoard shows: the loss and rate of steps, and all numbers of epochs, by update.

    Needs the package tensorboard, and neither torch nor tensorflow.

    Args:
        directory: the folder of the run.
        every: the loss and the rate are written after so many steps; None for epochs only.
    """

    first_only = True

    def __init__(self, directory: str | os.PathLike[str], every: int | None = 1) -> None:
        if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
            raise OnwardError(f"`every` is a number of steps, at least 1, not {every!r}")
        self.directory, self.every = Path(directory), every
        self._writer: Any = None

    def on_fit_begin(self, run: Run) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise OnwardError("TensorBoard needs the package tensorboard: pip install tensorboard") from error
        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(str(self.directory))
        if run.step:
            # What an interrupted run has written beyond this step did not happen.
            log = SessionLog(status=SessionLog.START)
            self._writer.add_event(Event(wall_time=time.time(), step=run.step + 1, session_log=log))

    def on_step_end(self, run: Run) -> None:
        if self.every and run.step % self.every == 0:
            values = {"step/loss": run.loss}
            self._add(values if run.rate is None else {**values, "step/rate": run.rate}, run.step)

    def on_epoch_end(self, run: Run) -> None:
        numbers = {name: value for name, value in run.logs.items() if isinstance(value, (int, float))}
        self._add({f"epoch/{name}": value for name, value in numbers.items()}, run.step)
        self._writer.flush()

    def on_fit_end(self, run: Run) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _add(self, values: dict[str, float], step: int) -> None:
        items = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=items)))

    def __repr__(self) -> str:
        return f"TensorBoard({str(self.directory)!r})"

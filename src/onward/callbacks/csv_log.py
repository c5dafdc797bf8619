"""The history as a table in a file."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Any

from onward.callbacks.base import Callback, Run
from onward.errors import OnwardError
from onward.runtime.files import write_bytes


class CSVLog(Callback):
    """Writes a line for each epoch: its number, the number of updates, and all numbers of `run.logs`.

    The file is replaced by a new one when training begins, unless it is continued: then the epochs that are done
    already stay. Numbers are written with all their digits.

    Args:
        path: the file.
    """

    first_only = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._rows: list[dict[str, Any]] = []

    def on_fit_begin(self, run: Run) -> None:
        self._rows = [row for row in self._read() if int(row["epoch"]) < run.epoch] if run.epoch else []
        self._write()

    def on_epoch_end(self, run: Run) -> None:
        self._rows.append({"epoch": run.epoch, "step": run.step, **run.logs})
        self._write()

    def _read(self) -> list[dict[str, Any]]:
        if not self.path.is_file():
            return []
        with open(self.path, newline="", encoding="utf-8") as file:
            rows: list[dict[str, Any]] = list(csv.DictReader(file))
        if any(not str(row.get("epoch", "")).isdigit() for row in rows):
            raise OnwardError(f"{str(self.path)!r} is no log of training, so it is not replaced; use another path")
        return rows

    def _write(self) -> None:
        """All of it: whoever is killed meanwhile leaves a whole table."""
        names = list(dict.fromkeys(["epoch", "step", *(name for row in self._rows for name in row)]))
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows)
        write_bytes(self.path, text.getvalue().encode())

    def __repr__(self) -> str:
        return f"CSVLog({str(self.path)!r})"

"""What the command says: results on standard output, everything else on standard error."""

from __future__ import annotations

import json
import math
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDTH = 160  # of tables that nobody looks at in a terminal

_quiet = False


@contextmanager
def quiet(on: bool = True) -> Iterator[None]:
    """Say nothing but results and errors: `--json` is read by a program."""
    global _quiet
    before, _quiet = _quiet, on or _quiet
    try:
        yield
    finally:
        _quiet = before


def is_quiet() -> bool:
    return _quiet


def say(text: str = "") -> None:
    """A line on how it is going."""
    if not _quiet:
        print(text, flush=True)


def command(*words: object) -> str:
    """A command to type next: called as this one was where a shell would not find it, as in `.venv/bin/onward demo`."""
    called = Path(sys.argv[0])
    name = str(called) if called.stem == "onward" and not shutil.which("onward") else "onward"
    return shlex.join([name, *map(str, words)])


def note(text: str) -> None:
    """Something that was guessed, changed or left out."""
    if not _quiet:
        print(f"note: {text}", file=sys.stderr, flush=True)


def complain(text: object) -> None:
    """Why the command does not work."""
    print(f"error: {text}", file=sys.stderr, flush=True)


def emit(content: Mapping[str, Any] | Sequence[Any]) -> None:
    """Results as JSON, which has no NaN and no infinity: they are null."""
    print(json.dumps(_plain(content), indent=2, allow_nan=False), flush=True)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[Any]], *, right: Sequence[str] = ()) -> None:
    """A table; the columns called `right` are numbers."""
    if _quiet:
        return
    say(title)
    made = Table(header_style="", box=None, pad_edge=False, show_header=any(head))
    for name in head:
        made.add_column(name, justify="right" if name in right else "left", style=None, overflow="fold")
    for row in rows:
        made.add_row(*(Text(str(cell)) for cell in row))
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console = Console(file=sys.stdout, highlight=False, width=_WIDTH)
    console.print(made)
    console.print()


def number(value: float) -> str:
    """A number as people read it."""
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.4g}"
    return f"{int(value):,}" if abs(value) < 1e15 else f"{value:.4g}"


def size(count: float) -> str:
    """A number of bytes."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}" if unit != "bytes" else f"{count:.0f} bytes"
        count /= 1000
    return f"{count:.3g} GB"

"""Figures of matplotlib, which is loaded when the first one is drawn."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from onward.errors import OnwardError
from onward.runtime.files import replacing


def new_figure(width: float, height: float = 3.6) -> Any:
    """A figure that no window belongs to; notebooks show it."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise OnwardError("plots need matplotlib, which is not installed: pip install matplotlib") from error
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: str | os.PathLike[str] | None) -> None:
    """Write a figure to a file, if there is one, in the format that its name ends in."""
    if path is None:
        return
    kind = Path(path).suffix.removeprefix(".").lower() or "png"
    known = figure.canvas.get_supported_filetypes()
    if kind not in known:
        raise OnwardError(f"{str(path)!r} ends in no format of figures; there are {', '.join(sorted(known))}")
    with replacing(path) as file:
        figure.savefig(file, format=kind)

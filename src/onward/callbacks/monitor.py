"""One number of an epoch that says whether it was better than those before."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from onward.errors import OnwardError

Mode = Literal["auto", "min", "max"]

# Parts of the names of what is better the larger it is; everything else is better the smaller it is.
_LARGER = ("acc", "auc", "f1", "precision", "recall", "r2", "score", "top", "iou", "dice", "bleu")


class Monitor:
    """Which number is looked at, and which way is better.

    Args:
        name: that of the number in `run.logs`; None for "val_loss", or "loss" where there is no validation.
        mode: "min" or "max"; "auto" tells from the name.
    """

    def __init__(self, name: str | None = None, mode: Mode = "auto") -> None:
        if name is not None and not isinstance(name, str):
            raise OnwardError(f"`monitor` is a name such as 'val_loss', not {name!r}")
        if mode not in ("auto", "min", "max"):
            raise OnwardError(f"mode={mode!r} is not known; use 'min', 'max' or 'auto'")
        self.name, self.mode = name, mode

    def value(self, logs: Mapping[str, Any]) -> float:
        """What is monitored, in this epoch."""
        name = self.of(logs)
        if name not in logs:
            hint = "; give fit(..., validation=...)" if name.startswith("val_") and "val_loss" not in logs else ""
            raise OnwardError(f"{name!r} is monitored, but an epoch has {', '.join(map(repr, logs))} only{hint}")
        return float(logs[name])

    def of(self, logs: Mapping[str, Any]) -> str:
        """The name that is looked at."""
        return self.name or ("val_loss" if "val_loss" in logs else "loss")

    def is_larger_better(self) -> bool:
        if self.mode != "auto":
            return self.mode == "max"
        name = (self.name or "").lower()
        return any(part in name for part in _LARGER) and "loss" not in name

    def is_better(self, value: float, than: float | None, min_delta: float = 0.0) -> bool:
        """Whether a value improves on another by more than `min_delta`; one that is no number never does."""
        if math.isnan(value):
            return False
        if than is None or math.isnan(than):
            return True
        return value > than + min_delta if self.is_larger_better() else value < than - min_delta

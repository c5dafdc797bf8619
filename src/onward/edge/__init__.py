"""Training in other runtimes: browsers, Node, and whatever else runs ONNX models.

`export` writes a folder for them; `Training` trains with it in Python, without onnx.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward.edge.exporting import Exported, export
    from onward.edge.training import Result, Training

__all__ = ["Exported", "Result", "Training", "export"]

# Loaded when first used: a device that trains has no onnx, which exporting needs.
_HOMES = {
    "Exported": "onward.edge.exporting",
    "Result": "onward.edge.training",
    "Training": "onward.edge.training",
    "export": "onward.edge.exporting",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value
    raise AttributeError(f"module 'onward.edge' has no attribute {name!r}")

"""Train any ONNX model on stock ONNX Runtime.

The public names are loaded when they are first used, so that ``import onward`` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward.autodiff.gradient import gradient
    from onward.errors import OnwardError

__version__ = "0.1.0"
__all__ = ["OnwardError", "gradient"]

_HOMES = {
    "OnwardError": "onward.errors",
    "gradient": "onward.autodiff.gradient",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'onward' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

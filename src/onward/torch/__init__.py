"""What onward and torch do together: modules exported for training or run on onnxruntime, many processes.

torch itself is imported when one of them is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onward.torch.distributed import Distributed
from onward.torch.exporting import export

if TYPE_CHECKING:
    from onward.torch.ortmodule import DebugOptions, LogLevel, ORTModule

__all__ = ["DebugOptions", "Distributed", "LogLevel", "ORTModule", "export"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from onward.torch import ortmodule

        return getattr(ortmodule, name)
    raise AttributeError(f"module 'onward.torch' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

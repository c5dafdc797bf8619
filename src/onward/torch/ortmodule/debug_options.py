"""`DebugOptions`, where older releases have them."""

from __future__ import annotations

from onward.torch.ortmodule.options import DebugOptions, LogLevel

__all__ = ["DebugOptions", "LogLevel"]

"""Export torch modules for training. torch itself is imported when that is asked for."""

from __future__ import annotations

from onward.torch.exporting import export

__all__ = ["export"]

"""The names of the package `torch_ort`; `onward.as_onnxruntime_training` knows those of its submodules."""

from __future__ import annotations

import torch

from onward.torch.ortmodule import DebugOptions, LogLevel, ORTModule

__all__ = ["DebugOptions", "LogLevel", "ORTModule", "set_seed"]


def set_seed(seed: int) -> None:
    """Seed what an ORTModule draws: torch's own numbers."""
    torch.manual_seed(seed)

"""What runs the graphs of inference; the name of the original."""

from __future__ import annotations

from onward.torch.ortmodule._execution import ExecutionManager

__all__ = ["InferenceManager"]

InferenceManager = ExecutionManager

"""What runs the graphs of training; the names of the original."""

from __future__ import annotations

from onward.session import TrainingAgent
from onward.torch.ortmodule._execution import ExecutionManager

__all__ = ["TrainingAgent", "TrainingManager"]

TrainingManager = ExecutionManager

"""What runs the graphs of one mode; the names of the original."""

from __future__ import annotations

from onward.torch.ortmodule._execution import ExecutionManager
from onward.torch.ortmodule.options import RuntimeOptions, _SkipCheck

__all__ = ["GraphExecutionManager", "_RuntimeOptions", "_SkipCheck"]

GraphExecutionManager, _RuntimeOptions = ExecutionManager, RuntimeOptions

"""What runs the graphs of both modes; the names of the original."""

from __future__ import annotations

from onward.torch.ortmodule._execution import ExecutionManagers

__all__ = ["GraphExecutionManagerFactory"]

GraphExecutionManagerFactory = ExecutionManagers

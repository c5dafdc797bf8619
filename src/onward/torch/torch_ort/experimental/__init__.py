"""What `torch_ort` calls experimental."""

from __future__ import annotations

from onward.torch.ortmodule import LogLevel
from onward.torch.torch_ort.experimental.graph_config import (
    PropagateCastLevel,
    PropagateCastOpsStrategy,
    set_propagate_cast_ops_optimization,
)

__all__ = ["LogLevel", "PropagateCastLevel", "PropagateCastOpsStrategy", "set_propagate_cast_ops_optimization"]

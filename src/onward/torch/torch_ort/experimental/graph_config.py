"""Where the original moves Casts to. Here they stay where they are; what is asked for is kept, and has no effect."""

from __future__ import annotations

from enum import Enum

from onward.session.configuration import PropagateCastOpsStrategy
from onward.torch.ortmodule import ORTModule

__all__ = ["PropagateCastLevel", "PropagateCastOpsStrategy", "set_propagate_cast_ops_optimization"]


class PropagateCastLevel(Enum):
    """Which operators Casts may be moved over; the original's spelling."""

    NOT_USED = -1
    FASTER_KEEP_PRECISION = 1
    AGGRRESSIVE_MIXED_PRECISION = 2


def set_propagate_cast_ops_optimization(
    model: ORTModule,
    strategy: PropagateCastOpsStrategy = PropagateCastOpsStrategy.FLOOD_FILL,
    level: PropagateCastLevel = PropagateCastLevel.NOT_USED,
) -> None:
    """Keep what is asked for."""
    for name, value, kind in (
        ("model", model, ORTModule),
        ("strategy", strategy, PropagateCastOpsStrategy),
        ("level", level, PropagateCastLevel),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"`{name}` must be a `{kind.__name__}` object, but `{type(value)}` object was specified.")
    for training in (True, False):
        manager = model._torch_module._execution_manager(training)
        manager._propagate_cast_ops_strategy, manager._propagate_cast_ops_level = strategy, level

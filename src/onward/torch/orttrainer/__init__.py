"""ORTTrainer: trains torch modules and ONNX models, under the names of `onnxruntime.training`.

The names are loaded when they are first used, and torch with those that need it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward.torch.orttrainer import amp, checkpoint, optim
    from onward.torch.orttrainer.orttrainer import ORTTrainer
    from onward.torch.orttrainer.orttrainer_options import ORTTrainerOptions
    from onward.torch.orttrainer.step_info import TrainStepInfo

__all__ = ["ORTTrainer", "ORTTrainerOptions", "TrainStepInfo", "amp", "checkpoint", "optim"]

_HOMES = {"ORTTrainer": "orttrainer", "ORTTrainerOptions": "orttrainer_options", "TrainStepInfo": "step_info"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f"{__name__}.{_HOMES.get(name, name)}")
    return getattr(home, name) if name in _HOMES else home


def __dir__() -> list[str]:
    return sorted(__all__)

"""What a trainer knows about the step under way."""

from __future__ import annotations

from typing import Any

from onward.torch.orttrainer.optim.config import _OptimizerConfig
from onward.torch.orttrainer.refusal import require


class TrainStepInfo:
    """What schedulers and loss scalers are told.

    Attributes:
        all_finite: whether all gradients of the last update were finite.
        fetches: the outputs to return; all of them, if it is empty.
        optimization_step: the number of updates so far.
        step: the number of calls of `train_step` so far.
    """

    def __init__(
        self,
        optimizer_config: _OptimizerConfig,
        all_finite: bool = True,
        fetches: list[str] | None = None,
        optimization_step: int = 0,
        step: int = 0,
    ) -> None:
        fetches = [] if fetches is None else fetches
        require(isinstance(optimizer_config, _OptimizerConfig), "optimizer_config must be a optim._OptimizerConfig")
        require(isinstance(all_finite, bool), "all_finite must be a bool")
        listed = isinstance(fetches, list) and all(isinstance(name, str) for name in fetches)
        require(listed, "fetches must be a list of str")
        require(_is_count(optimization_step), "optimization_step must be a positive int")
        require(_is_count(step), "step must be a positive int")
        self.optimizer_config = optimizer_config
        self.all_finite = all_finite
        self.fetches = fetches
        self.optimization_step = optimization_step
        self.step = step


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0

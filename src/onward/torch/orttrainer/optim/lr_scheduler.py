"""Learning rates that rise linearly from 0 first: the schedules of `onward.optim` under the names of ORTTrainer."""

from __future__ import annotations

import math
from typing import Any, Protocol

from onward.optim import schedules
from onward.torch.orttrainer.refusal import require


class StepInfo(Protocol):
    """What a scheduler may know; see `TrainStepInfo`."""

    optimization_step: int
    optimizer_config: Any


class _LRScheduler:
    """The base of schedulers, also of those that users write: they override `get_lr`."""

    def __init__(self) -> None:
        self._last_lr: list[float] = []

    def _step(self, train_step_info: StepInfo) -> list[float]:
        self._last_lr = self.get_lr(train_step_info)
        return self._last_lr

    def get_lr(self, train_step_info: StepInfo) -> list[float]:
        """The learning rate of the next update, as a list of one number."""
        raise NotImplementedError

    def get_last_lr(self) -> list[float]:
        """What was computed last."""
        return self._last_lr


class _Warmup(_LRScheduler):
    """lr s / max(1, W) for the first W = warmup T of T steps, s the number of updates so far; W need not be whole."""

    def __init__(self, total_steps: int, warmup: float) -> None:
        super().__init__()
        whole = isinstance(total_steps, int) and not isinstance(total_steps, bool)
        require(whole and total_steps > 0, "total_steps must be a strict positive number")
        require(isinstance(warmup, float) and 0 <= warmup < 1, "warmup must be a float between (0, 1]")
        self.total_steps, self.warmup = total_steps, warmup
        self._num_warmup_steps = warmup * total_steps

    def get_lr(self, train_step_info: StepInfo) -> list[float]:
        step, base = train_step_info.optimization_step, train_step_info.optimizer_config.lr
        return [max(0.0, self._schedule(base)(step))]

    def _schedule(self, base: float) -> schedules.Schedule:
        raise NotImplementedError


class ConstantWarmupLRScheduler(_Warmup):
    """lr."""

    def __init__(self, total_steps: int, warmup: float = 0.002) -> None:
        super().__init__(total_steps, warmup)

    def _schedule(self, base: float) -> schedules.Schedule:
        return schedules.Constant(base, self._num_warmup_steps)


class CosineWarmupLRScheduler(_Warmup):
    """lr (1 + cos(2 pi cycles (s - W) / max(1, T - W))) / 2."""

    def __init__(self, total_steps: int, cycles: float = 0.5, warmup: float = 0.002) -> None:
        super().__init__(total_steps, warmup)
        require(isinstance(cycles, float) and 0 < cycles < math.inf, "cycles must be a positive float")
        self.cycles = cycles

    def _schedule(self, base: float) -> schedules.Schedule:
        return schedules.Cosine(base, self.total_steps, self._num_warmup_steps, cycles=self.cycles)


class LinearWarmupLRScheduler(_Warmup):
    """lr max(0, T - s) / max(1, T - W)."""

    def __init__(self, total_steps: int, warmup: float = 0.002) -> None:
        super().__init__(total_steps, warmup)

    def _schedule(self, base: float) -> schedules.Schedule:
        return schedules.Linear(base, self._num_warmup_steps, self.total_steps)


class PolyWarmupLRScheduler(_Warmup):
    """lr_end + (lr - lr_end) (1 - (s - W) / (T - W))^power, and lr_end after T steps."""

    def __init__(self, total_steps: int, lr_end: float = 1e-7, power: float = 1.0, warmup: float = 0.002) -> None:
        super().__init__(total_steps, warmup)
        require(isinstance(lr_end, float) and 0 <= lr_end < math.inf, "lr_end must be a positive float")
        require(isinstance(power, float) and 0 <= power < math.inf, "power must be a positive float")
        self.lr_end, self.power = lr_end, power

    def get_lr(self, train_step_info: StepInfo) -> list[float]:
        scheduled = super().get_lr(train_step_info)
        return [self.lr_end] if train_step_info.optimization_step > self.total_steps else scheduled

    def _schedule(self, base: float) -> schedules.Schedule:
        require(base > self.lr_end, f"lr_end ({self.lr_end}) must be be smaller than initial lr ({base})")
        return schedules.Polynomial(
            base, self.total_steps, power=self.power, warmup_step_count=self._num_warmup_steps, minimum=self.lr_end
        )

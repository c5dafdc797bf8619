"""What a loss is multiplied with, so that small gradients do not vanish in half precision."""

from __future__ import annotations

from typing import Any

from onward.torch.orttrainer.refusal import require


class LossScaler:
    """The base of loss scalers, also of those that users write: they override `reset` and `update`."""

    def __init__(self, loss_scale: float) -> None:
        self._input_name: str | None = None
        self._loss_scale = loss_scale

    @property
    def input_name(self) -> str | None:
        """What the trainer calls the input for the scale."""
        return self._input_name

    @input_name.setter
    def input_name(self, input_name: str) -> None:
        require(isinstance(input_name, str), "'input_name' must be a string")
        require(bool(input_name), "'input_name' cannot be empty")
        self._input_name = input_name

    @property
    def loss_scale(self) -> float:
        return self._loss_scale

    @loss_scale.setter
    def loss_scale(self, loss_scale: float) -> None:
        require(isinstance(loss_scale, float) and loss_scale > 0, "'loss_scale' must be a positive float")
        self._loss_scale = loss_scale

    def reset(self) -> None:
        """Begin anew."""
        raise NotImplementedError

    def update(self, train_step_info: Any) -> float:
        """The scale from now on, after a step whose gradients were all finite, or not."""
        raise NotImplementedError


class DynamicLossScaler(LossScaler):
    """Twice the scale after `up_scale_window` finite steps in a row, half of it after one that was not."""

    def __init__(
        self,
        automatic_update: bool = True,
        loss_scale: float = float(1 << 16),
        up_scale_window: int = 2000,
        min_loss_scale: float = 1.0,
        max_loss_scale: float = float(1 << 24),
    ) -> None:
        super().__init__(loss_scale)
        self.automatic_update = automatic_update
        self.up_scale_window = up_scale_window
        self.min_loss_scale = min_loss_scale
        self.max_loss_scale = max_loss_scale
        self._initial_loss_scale = loss_scale
        self._stable_steps_count = 0

    def reset(self) -> None:
        self._loss_scale = self._initial_loss_scale
        self._stable_steps_count = 0

    def update(self, train_step_info: Any) -> float:
        self._loss_scale, self._stable_steps_count = updated_scale(
            self._loss_scale,
            self._stable_steps_count,
            bool(train_step_info.all_finite),
            window=self.up_scale_window,
            bounds=(self.min_loss_scale, self.max_loss_scale),
        )
        return self._loss_scale


def updated_scale(
    scale: float, stable: int, finite: bool, *, window: int, bounds: tuple[float, float]
) -> tuple[float, int]:
    """The scale and the number of finite steps in a row after another step."""
    lowest, highest = bounds
    if not finite:
        return max(lowest, scale / 2), 0
    if stable + 1 >= window:
        return min(highest, scale * 2), 0
    return scale, stable + 1

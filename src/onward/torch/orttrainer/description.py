"""What the first ORTTrainer is told: inputs and outputs, and the scale of the loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from onward.torch.orttrainer.amp.loss_scaler import updated_scale


class IODescription:
    """Name, shape and type of an input or output; texts in shapes name sizes that may change.

    Types, and sizes that are numbers, need not be true: a model is exported as it is called first.
    """

    def __init__(
        self,
        name: str,
        shape: Sequence[int | str],
        dtype: torch.dtype | None = None,
        num_classes: int | None = None,
    ) -> None:
        self.name_ = name
        self.shape_ = shape
        self.dtype_ = dtype
        self.num_classes_ = num_classes


class ModelDescription:
    """The inputs of a model, the label last, and its outputs, the loss first."""

    def __init__(self, inputs: list[IODescription], outputs: list[IODescription]) -> None:
        self.inputs_ = inputs
        self.outputs_ = outputs


def generate_sample(desc: IODescription, device: Any = None) -> torch.Tensor:
    """A random tensor that fits a description; sizes that may change are 1."""
    size = [axis if isinstance(axis, int) else 1 for axis in desc.shape_]
    if desc.num_classes_:
        return torch.randint(0, desc.num_classes_, size, dtype=desc.dtype_, device=device)
    return torch.randn(size, dtype=desc.dtype_, device=device)


class LossScaler:
    """Twice the scale after `up_scale_window` finite steps in a row, half of it after one that was not."""

    def __init__(
        self,
        loss_scale_input_name: str,
        is_dynamic_scale: bool,
        loss_scale: float = float(1 << 16),
        up_scale_window: int = 2000,
        min_loss_scale: float = 1.0,
        max_loss_scale: float = float(1 << 24),
    ) -> None:
        self.loss_scale_input_name_ = loss_scale_input_name
        self.is_dynamic_scale_ = is_dynamic_scale
        self.initial_loss_scale_ = loss_scale
        self.up_scale_window_ = up_scale_window
        self.min_loss_scale_ = min_loss_scale
        self.max_loss_scale_ = max_loss_scale
        self.loss_scale_ = loss_scale
        self.stable_steps_ = 0

    def update_loss_scale(self, is_all_finite: Any) -> None:
        """Take a step into account."""
        if self.is_dynamic_scale_:
            self.loss_scale_, self.stable_steps_ = updated_scale(
                self.loss_scale_,
                self.stable_steps_,
                bool(is_all_finite),
                window=self.up_scale_window_,
                bounds=(self.min_loss_scale_, self.max_loss_scale_),
            )

    def reset(self) -> None:
        """Begin anew."""
        self.loss_scale_ = self.initial_loss_scale_
        self.stable_steps_ = 0

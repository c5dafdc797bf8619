"""The training and the evaluation model of artifacts, as a block."""

from __future__ import annotations

from typing import Any

from onward import onnxblock
from onward.errors import OnwardError
from onward.onnxblock.model_accessor import ModelAccessor
from onward.training.split import SplitModels, split


class Training(onnxblock.TrainingBlock):
    """The loss on top of the forward model, and everything that `split` wants to know."""

    def __init__(
        self,
        loss: onnxblock.Block,
        *,
        trainable: list[str] | None,
        frozen: list[str],
        loss_inputs: list[str],
        outputs: list[str],
    ) -> None:
        super().__init__()
        both = sorted(set(trainable or ()) & set(frozen))
        if both:
            raise OnwardError(f"A parameter cannot be frozen and require gradient computation at the same time: {both}")
        self._loss, self._trainable, self._frozen = loss, trainable, frozen
        self._loss_inputs, self._additional_outputs = loss_inputs, outputs
        self._arguments: dict[str, Any] = {}

    def build(self) -> tuple[str, ...]:
        loss = self._loss(*self._loss_inputs)
        return (*((loss,) if isinstance(loss, str) else loss), *self._additional_outputs)

    def _split(self, accessor: ModelAccessor) -> SplitModels:
        self._arguments = {
            "model": accessor.to_ir(),
            "trainable": self._trainable,
            "frozen": self._frozen,
            "targets": accessor.added_inputs(),
            "constants": accessor.added_initializers(),
        }
        return split(**self._arguments)

    @property
    def models(self) -> SplitModels:
        return self._built("the training block was not called")

    def move_to(self, opset: int) -> None:
        """Make the models again, in this opset at least."""
        self._set(split(**self._arguments, opset=opset))

"""The description of a model: names and shapes of its inputs and outputs, and which output is the loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from onward.torch.orttrainer import schema
from onward.torch.orttrainer.refusal import InvalidValueError, require

LEARNING_RATE_IO_DESCRIPTION_NAME = "__learning_rate"
ALL_FINITE_IO_DESCRIPTION_NAME = "__all_finite"
LOSS_SCALE_INPUT_IO_DESCRIPTION_NAME = "__loss_scale_input_name"
GRADIENT_ACCUMULATION_IO_DESCRIPTION_NAME = "__gradient_accumulation_name"

Shape = list[int | str]


class InputDescription(NamedTuple):
    name: str
    shape: Shape


class InputDescriptionTyped(NamedTuple):
    name: str
    shape: Shape
    dtype: torch.dtype


class OutputDescription(NamedTuple):
    name: str
    shape: Shape
    is_loss: bool = False


class OutputDescriptionTyped(NamedTuple):
    name: str
    shape: Shape
    is_loss: bool
    dtype: torch.dtype
    dtype_amp: torch.dtype | None


class _ORTTrainerModelDesc:
    """A description ``{"inputs": [(name, shape)], "outputs": [(name, shape, is_loss)]}``, checked.

    A size in a shape is an integer, or a text that names one that may change. Types are added when they are known.
    """

    _InputDescription = InputDescription
    _InputDescriptionTyped = InputDescriptionTyped
    _OutputDescription = OutputDescription
    _OutputDescriptionTyped = OutputDescriptionTyped

    def __init__(self, model_desc: Mapping[str, Any]) -> None:
        self._original = dict(model_desc)
        self._validated, errors = schema.validated(model_desc, _schema())
        if errors:
            raise InvalidValueError(f"Invalid model_desc: {errors}")
        self.inputs: list[Any] = [InputDescription(*given) for given in self._validated["inputs"]]
        self.outputs: list[Any] = [OutputDescription(*given) for given in self._validated["outputs"]]
        self.learning_rate = InputDescriptionTyped(LEARNING_RATE_IO_DESCRIPTION_NAME, [1], torch.float32)
        self._gradient_accumulation: Any = None
        self._all_finite: Any = None
        self._loss_scale_input: Any = None

    def __repr__(self) -> str:
        inputs = "".join(f"\n\t{index}: {_shown(one)}" for index, one in enumerate(self.inputs))
        outputs = "".join(f"\n\t{index}: {_shown(one)}" for index, one in enumerate(self.outputs))
        rate = _shown(self.learning_rate)
        return f"Model description:\n\nInputs:{inputs}\nOutputs:{outputs}\nLearning rate: {rate}"

    def add_type_to_input_description(self, index: int, dtype: torch.dtype) -> None:
        """Say of which type an input is."""
        require(isinstance(index, int) and index >= 0, "input 'index' must be a positive int")
        require(isinstance(dtype, torch.dtype), "input 'dtype' must be a torch.dtype type")
        self.inputs[index] = InputDescriptionTyped(self.inputs[index].name, self.inputs[index].shape, dtype)

    def add_type_to_output_description(
        self, index: int, dtype: torch.dtype, dtype_amp: torch.dtype | None = None
    ) -> None:
        """Say of which type an output is, and of which in evaluations with mixed precision."""
        require(isinstance(index, int) and index >= 0, "output 'index' must be a positive int")
        require(isinstance(dtype, torch.dtype), "output 'dtype' must be a torch.dtype type")
        require(
            dtype_amp is None or isinstance(dtype_amp, torch.dtype),
            "output 'dtype_amp' must be either None or torch.dtype type",
        )
        name, shape, is_loss = self.outputs[index][:3]
        self.outputs[index] = OutputDescriptionTyped(name, shape, is_loss, dtype, dtype_amp)

    @property
    def gradient_accumulation(self) -> Any:
        """The output that says that gradients were added up."""
        return self._gradient_accumulation

    @gradient_accumulation.setter
    def gradient_accumulation(self, name: str) -> None:
        require(isinstance(name, str) and bool(name), "'name' is an invalid output name")
        self._gradient_accumulation = OutputDescriptionTyped(name, [1], False, torch.bool, None)

    @property
    def all_finite(self) -> Any:
        """The output that says whether all gradients are finite."""
        return self._all_finite

    @all_finite.setter
    def all_finite(self, name: str) -> None:
        require(isinstance(name, str) and bool(name), "'name' is an invalid output name")
        self._all_finite = OutputDescriptionTyped(name, [1], False, torch.bool, None)

    @property
    def loss_scale_input(self) -> Any:
        """The input for the scale of the loss."""
        return self._loss_scale_input

    @loss_scale_input.setter
    def loss_scale_input(self, name: str) -> None:
        require(isinstance(name, str) and bool(name), "'name' is an invalid input name")
        self._loss_scale_input = InputDescriptionTyped(name, [], torch.float32)


def _shown(described: Any) -> str:
    fields = (f"{key}={value}" for key, value in described._asdict().items() if key != "is_loss")
    return f"({', '.join(fields)})"


def _schema() -> dict[str, schema.Rule]:
    """That of one description: only one of its outputs is the loss."""
    losses = 0

    def check_output(value: Any) -> list[str]:
        nonlocal losses
        if not isinstance(value, tuple) or not 2 <= len(value) <= 3:
            return ["must be a tuple with size 2 or 3"]
        wrong = []
        if len(value) == 3 and not isinstance(value[2], bool):
            wrong.append("the third element of the tuple (aka is_loss) must be a boolean")
        elif len(value) == 3:
            losses += value[2]
            if losses > 1:
                wrong.append("only one is_loss can bet set to True")
        return [*wrong, *_check_name_and_shape(value)]

    described = {"inputs": _check_input, "outputs": check_output}
    return {
        name: schema.Rule("list", (list, tuple), required=True, shortest=1, each=schema.Rule(check=check))
        for name, check in described.items()
    }


def _check_input(value: Any) -> list[str]:
    if not isinstance(value, tuple) or len(value) != 2:
        return ["must be a tuple with size 2"]
    return _check_name_and_shape(value)


def _check_name_and_shape(value: tuple[Any, ...]) -> list[str]:
    wrong = []
    if not isinstance(value[0], str):
        wrong.append("the first element of the tuple (aka name) must be a string")
    if not isinstance(value[1], list):
        return [*wrong, "the second element of the tuple (aka shape) must be a list"]
    sizes = [size for size in value[1] if not isinstance(size, (str, int)) or isinstance(size, bool)]
    return [*wrong, *["each shape must be either a string or integer" for _ in sizes]]

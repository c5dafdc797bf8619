"""The optimizer of artifacts: what it may be given as, the block that it becomes, and the model of that."""

from __future__ import annotations

from enum import Enum
from typing import Any, TypeAlias

import onnx

from onward import onnxblock, optim
from onward.artifacts.training import Training
from onward.errors import OnwardError
from onward.onnxblock.optim import RecipeOptimizer
from onward.training.description import opset_of
from onward.training.plain_update import plain_optimizer_model


class OptimType(Enum):
    """The optimizers that `generate_artifacts` takes by name; those of onnxruntime-training have its numbers.

    `AdamW` is that of Hugging Face and onnxruntime-training, `TorchAdamW` that of torch.
    """

    AdamW = 1
    SGD = 2
    TorchAdamW = 3
    Adam = 4
    Adamax = 5
    LAMB = 6
    Adagrad = 7
    RMSprop = 8
    Adadelta = 9
    Lion = 10


Optimizer: TypeAlias = OptimType | onnxblock.Block | optim.Optimizer | str


def optimizer_block(optimizer: Any) -> onnxblock.ForwardBlock | None:
    """The block of an optimizer that was given in any of the ways of `Optimizer`; None where there is none."""
    if isinstance(optimizer, str) and optimizer in OptimType.__members__:
        optimizer = OptimType[optimizer]
    if isinstance(optimizer, OptimType):
        return getattr(onnxblock.optim, optimizer.name)()
    if isinstance(optimizer, (str, optim.Optimizer)):
        return RecipeOptimizer(optimizer)
    if optimizer is None or isinstance(optimizer, onnxblock.ForwardBlock):
        return optimizer
    raise OnwardError(
        f"Unknown optimizer provided {type(optimizer)}. Expected optimizer to be an OptimType, an "
        "onnxblock.ForwardBlock, an onward.optim.Optimizer or the name of one."
    )


def optimizer_model(
    block: onnxblock.ForwardBlock | None, training: Training, plain_tensors: bool
) -> onnx.ModelProto | None:
    """The optimizer model in the opset of the others; where it needs a newer one, they move there."""
    if block is None:
        return None
    while True:
        opset = opset_of(training.models.training)
        model = _over_tensors(block, training, opset) if plain_tensors else _over_sequences(block, training, opset)
        if opset_of(model) <= opset:
            return model
        training.move_to(opset_of(model))


def _over_sequences(block: onnxblock.ForwardBlock, training: Training, opset: int) -> onnx.ModelProto:
    with onnxblock.empty_base(opset):
        block(training.parameters())
    return block.to_model_proto()


def _over_tensors(block: onnxblock.ForwardBlock, training: Training, opset: int) -> onnx.ModelProto:
    if not isinstance(block, RecipeOptimizer):
        raise OnwardError(
            f"`plain_tensors` needs an optimizer of onward.optim or onnxblock.optim; {type(block).__name__} is a block "
            "that writes its own model, so let it take tensors instead of sequences itself"
        )
    tensors = training.models.trainable
    types = {name: (tensor.dtype, tuple(tensor.shape.numpy())) for name, tensor in tensors.items()}
    return plain_optimizer_model(block.optimizer, types, opset)


def by_group(names: list[str], block: onnxblock.ForwardBlock | None) -> list[str]:
    """The parameters group by group, so that each group is one piece of the runtime's flat buffers."""
    if not isinstance(block, RecipeOptimizer):
        return names
    return [name for members in block.optimizer.partition(names).values() for name in members]

"""The loss of artifacts: what it may be given as, the block that it becomes, and what this takes of the model."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from enum import Enum
from typing import Any, TypeAlias

import onnx

from onward import losses, onnxblock
from onward.artifacts.names import listed_once
from onward.errors import OnwardError
from onward.graph.prepare import prepare
from onward.graph.shapes import FLOATING, floating_origin
from onward.onnxblock.loss import FunctionLoss


class LossType(Enum):
    """The losses that `generate_artifacts` takes by name; those of onnxruntime-training have its numbers."""

    MSELoss = 1
    CrossEntropyLoss = 2
    BCEWithLogitsLoss = 3
    L1Loss = 4
    SmoothL1Loss = 5
    HuberLoss = 6
    NLLLoss = 7
    BCELoss = 8
    KLDivLoss = 9
    HingeLoss = 10
    HingeEmbeddingLoss = 11
    SoftMarginLoss = 12
    MultiMarginLoss = 13
    PoissonNLLLoss = 14
    GaussianNLLLoss = 15
    CosineEmbeddingLoss = 16
    TripletMarginLoss = 17
    FocalLoss = 18
    BinaryFocalLoss = 19
    SoftCrossEntropyLoss = 20
    CTCLoss = 21


Loss: TypeAlias = LossType | onnxblock.Block | losses.Loss | onnx.ModelProto | str | os.PathLike[str]


def loss_block(loss: Any) -> onnxblock.Block:
    """The block of a loss that was given in any of the ways of `Loss`, or not at all."""
    if loss is None:
        return onnxblock.blocks.PassThrough()
    if isinstance(loss, LossType):
        return getattr(onnxblock.loss, loss.name)()
    if isinstance(loss, onnxblock.Block):
        return loss
    if isinstance(loss, str) and loss in LossType.__members__:
        return loss_block(LossType[loss])
    if not isinstance(loss, (str, os.PathLike, onnx.ModelProto)) and (not callable(loss) or isinstance(loss, type)):
        raise OnwardError(
            f"Unknown loss provided {type(loss)}. Expected loss to be a LossType, an onnxblock.Block, the name of a "
            "loss of onward.losses, a function (op, prediction, *targets) or an ONNX model."
        )
    return FunctionLoss(losses.get(loss))


def loss_inputs(model: onnx.ModelProto, loss: onnxblock.Block, names: Sequence[str] | None) -> list[str]:
    """The values that the loss takes, all outputs by default."""
    if names:
        return listed_once("loss_input_names", names)
    outputs = [output.name for output in model.graph.output]
    if not outputs:
        raise OnwardError("the model has no outputs, so there is nothing to train")
    # The original gives a second output to the loss in place of its target, and trains towards that.
    if isinstance(loss, FunctionLoss) and len(outputs) != loss.predictions:
        floating = [output.name for output in model.graph.output if _is_floating(output)] or _origins(model)
        raise OnwardError(
            f"the model has {len(outputs)} outputs ({', '.join(outputs)}), but the loss takes {loss.predictions} of "
            f"them; say which, for instance loss_input_names={(floating or outputs)[: loss.predictions]!r}, or give a "
            "block that combines them"
        )
    return outputs


def _origins(model: onnx.ModelProto) -> list[str]:
    """What labels are chosen by, in a model without an output of floating point."""
    with contextlib.suppress(OnwardError):
        found = [floating_origin(output) for output in prepare(model).graph.outputs]
        return list(dict.fromkeys(origin.name or "" for origin in found if origin is not None))
    return []


def _is_floating(value: onnx.ValueInfoProto) -> bool:
    return value.type.tensor_type.elem_type in {int(dtype) for dtype in FLOATING}

"""The losses by their names, for arguments that are strings."""

from __future__ import annotations

import os
from enum import Enum

import onnx

from onward.errors import OnwardError, UnknownNameError
from onward.losses import alignment, classification, margin, probability, regression
from onward.losses.base import Loss
from onward.losses.model import from_model

_LOSSES: dict[str, Loss] = {
    loss.__name__: loss
    for loss in (
        regression.mse,
        regression.l1,
        regression.smooth_l1,
        regression.huber,
        regression.poisson_nll,
        regression.gaussian_nll,
        classification.cross_entropy,
        classification.soft_cross_entropy,
        classification.nll,
        classification.focal,
        classification.multi_margin,
        probability.bce,
        probability.bce_with_logits,
        probability.binary_focal,
        probability.kl_div,
        margin.hinge,
        margin.hinge_embedding,
        margin.soft_margin,
        margin.cosine_embedding,
        margin.triplet,
        alignment.ctc,
    )
}


# What torch and onnxruntime-training call them.
_CLASSES = {
    "MSELoss": "mse",
    "L1Loss": "l1",
    "SmoothL1Loss": "smooth_l1",
    "HuberLoss": "huber",
    "PoissonNLLLoss": "poisson_nll",
    "GaussianNLLLoss": "gaussian_nll",
    "CrossEntropyLoss": "cross_entropy",
    "SoftCrossEntropyLoss": "soft_cross_entropy",
    "NLLLoss": "nll",
    "FocalLoss": "focal",
    "MultiMarginLoss": "multi_margin",
    "BCELoss": "bce",
    "BCEWithLogitsLoss": "bce_with_logits",
    "BinaryFocalLoss": "binary_focal",
    "KLDivLoss": "kl_div",
    "HingeLoss": "hinge",
    "HingeEmbeddingLoss": "hinge_embedding",
    "SoftMarginLoss": "soft_margin",
    "CosineEmbeddingLoss": "cosine_embedding",
    "TripletMarginLoss": "triplet",
    "CTCLoss": "ctc",
}


def get(loss: str | os.PathLike[str] | onnx.ModelProto | Loss) -> Loss:
    """The loss of that name, or of an ONNX model (or its file); a function is returned as it is.

    The names of torch's classes are known too, as a text or as a member of `onward.artifacts.LossType`.
    """
    if isinstance(loss, Enum):
        loss = loss.name
    if isinstance(loss, str):
        loss = _CLASSES.get(loss, loss)
    if isinstance(loss, (onnx.ModelProto, os.PathLike)) or (isinstance(loss, str) and loss.endswith(".onnx")):
        return from_model(loss)
    if isinstance(loss, str):
        if loss not in _LOSSES:
            raise UnknownNameError(f"there is no loss {loss!r}; there are {', '.join(names())}, or write a function")
        return _LOSSES[loss]
    if not callable(loss) or isinstance(loss, type):
        raise OnwardError(
            f"a loss is the name of one of onward.losses ({', '.join(names())}), a function (op, prediction, *targets) "
            f"or an ONNX model, not {loss!r}"
        )
    return loss


def names() -> list[str]:
    """The names that `get` knows."""
    return sorted(_LOSSES)

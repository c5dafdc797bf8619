"""The losses by their names, for arguments that are strings."""

from __future__ import annotations

import os

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


def get(loss: str | os.PathLike[str] | onnx.ModelProto | Loss) -> Loss:
    """The loss of that name, or of an ONNX model (or its file); a function is returned as it is."""
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

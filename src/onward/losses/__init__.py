"""Layer 1: losses, written in the builder notation."""

from onward.losses.alignment import ctc
from onward.losses.base import (
    Loss,
    LossSignature,
    apply,
    declared_signature,
    loss_signature,
    prediction_count,
    reduce,
    target_inputs,
    targets,
)
from onward.losses.classification import cross_entropy, focal, multi_margin, nll, soft_cross_entropy
from onward.losses.margin import cosine_embedding, hinge, hinge_embedding, soft_margin, triplet
from onward.losses.model import from_model
from onward.losses.probability import bce, bce_with_logits, binary_focal, kl_div
from onward.losses.registry import get, names
from onward.losses.regression import gaussian_nll, huber, l1, mse, poisson_nll, smooth_l1
from onward.losses.share import share
from onward.losses.target import class_indices, like_prediction, one_per_row
from onward.losses.weighted import weighted

__all__ = [
    "Loss",
    "LossSignature",
    "apply",
    "bce",
    "bce_with_logits",
    "binary_focal",
    "class_indices",
    "cosine_embedding",
    "cross_entropy",
    "ctc",
    "declared_signature",
    "focal",
    "from_model",
    "gaussian_nll",
    "get",
    "hinge",
    "hinge_embedding",
    "huber",
    "kl_div",
    "l1",
    "like_prediction",
    "loss_signature",
    "mse",
    "multi_margin",
    "names",
    "nll",
    "one_per_row",
    "poisson_nll",
    "prediction_count",
    "reduce",
    "share",
    "smooth_l1",
    "soft_cross_entropy",
    "soft_margin",
    "target_inputs",
    "targets",
    "triplet",
    "weighted",
]

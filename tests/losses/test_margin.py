"""Losses with a margin against torch.nn.functional."""

import functools

import numpy as np
import pytest
import torch
from torch.nn import functional

from onward import losses
from onward.errors import OnwardError
from onward.testing import loss_model

from .torch_parity import check_against_torch, normal, signs

REDUCTIONS = ["mean", "sum", "none"]


def hinge_reference(x, t, margin=1.0, reduction="mean"):
    rows = torch.clamp_min(margin - t * x, 0)
    return rows if reduction == "none" else getattr(rows, reduction)()


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", [(5,), (3, 2, 2)])
@pytest.mark.parametrize(
    ("loss", "reference", "options"),
    [
        (losses.hinge, hinge_reference, {}),
        (losses.hinge, hinge_reference, {"margin": 0.3}),
        (losses.hinge_embedding, functional.hinge_embedding_loss, {}),
        (losses.hinge_embedding, functional.hinge_embedding_loss, {"margin": 0.3}),
        (losses.soft_margin, functional.soft_margin_loss, {}),
    ],
)
def test_signed_targets(loss, reference, options, shape, reduction):
    x, t = normal(*shape), signs(*shape)
    check_against_torch(loss, reference, [x], [t], {**options, "reduction": reduction})


def softplus_reference(x, t, reduction):
    return functional.softplus(-t * x)


def test_soft_margin_of_extreme_predictions():
    """torch's own soft margin loss overflows here."""
    x, t = np.array([1000.0, -1000, 1000, -1000]), np.array([1.0, -1, -1, 1])
    check_against_torch(losses.soft_margin, softplus_reference, [x], [t], {"reduction": "none"}, differences=False)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("margin", [0.0, 0.2])
@pytest.mark.parametrize("shape", [(4,), (5, 4)])
def test_cosine_embedding(shape, margin, reduction):
    a, b = normal(*shape), normal(*shape, seed=1)
    options = {"margin": margin, "reduction": reduction}
    targets = [signs(*shape[:-1])]
    check_against_torch(losses.cosine_embedding, functional.cosine_embedding_loss, [a, b], targets, options)


def test_cosine_embedding_of_zero_vectors():
    a, b, t = np.zeros((2, 3)), np.zeros((2, 3)), np.array([1.0, -1.0])
    options = {"margin": -0.1}
    check_against_torch(
        losses.cosine_embedding, functional.cosine_embedding_loss, [a, b], [t], options, differences=False
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"margin": 0.3, "swap": True},
        {"p": 1.0},
        {"p": 3.0, "swap": True},
        # In float32 an epsilon of 1e-6 is lost in rounding; a larger one shows that it is used.
        {"eps": 0.5},
    ],
)
@pytest.mark.parametrize("shape", [(4,), (5, 3), (2, 2, 3)])
def test_triplet(shape, options, reduction):
    vectors = [normal(*shape, seed=seed) for seed in range(3)]
    options = {**options, "reduction": reduction}
    check_against_torch(losses.triplet, functional.triplet_margin_loss, vectors, [], options)


def largest_difference(a, p, n, reduction="mean"):
    """torch's own p = inf gives no number for one of its norms, so the formula is written out."""
    rows = torch.clamp_min((a - p + 1e-6).abs().amax(-1) - (a - n + 1e-6).abs().amax(-1) + 1, 0)
    return rows if reduction == "none" else rows.mean()


def test_triplet_of_the_largest_difference():
    vectors = [normal(5, 3, seed=seed) for seed in range(3)]
    loss = functools.partial(losses.triplet, p=float("inf"))
    check_against_torch(loss, largest_difference, vectors, [])


def test_triplet_of_equal_vectors():
    """Equal vectors have a finite slope."""
    same = normal(2, 3)
    check_against_torch(
        losses.triplet, functional.triplet_margin_loss, [same, same, same], [], differences=False, on_runtime=[]
    )


@pytest.mark.parametrize(
    ("options", "message"), [({"p": 0}, "triplet needs p > 0, not 0"), ({"reduction": None}, "reduction=None")]
)
def test_errors(options, message):
    with pytest.raises(OnwardError, match=message):
        loss_model(functools.partial(losses.triplet, **options), [normal(2, 3)] * 3, [])

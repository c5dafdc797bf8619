"""Losses of numbers against torch.nn.functional."""

import functools

import numpy as np
import pytest
from torch.nn import functional

from onward import losses
from onward.errors import OnwardError
from onward.testing import check_loss, loss_model, run_on_runtime

from .torch_parity import check_against_torch, normal, uniform

REDUCTIONS = ["mean", "sum", "none"]
SHAPES = [(5,), (4, 3), (2, 3, 4), (2, 3, 2, 2)]

# Twice as wide as the default threshold of Huber, so that both of its branches are taken.
CASES = [
    (losses.mse, functional.mse_loss, {}),
    (losses.l1, functional.l1_loss, {}),
    (losses.smooth_l1, functional.smooth_l1_loss, {}),
    (losses.smooth_l1, functional.smooth_l1_loss, {"beta": 0.3}),
    (losses.smooth_l1, functional.smooth_l1_loss, {"beta": 0.0}),
    (losses.huber, functional.huber_loss, {}),
    (losses.huber, functional.huber_loss, {"delta": 0.3}),
]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("loss", "reference", "options"), CASES)
def test_differences(loss, reference, options, reduction):
    x, t = 2 * normal(4, 3), normal(4, 3, seed=1)
    check_against_torch(loss, reference, [x], [t], {**options, "reduction": reduction})


@pytest.mark.parametrize("shape", [(), *SHAPES])
@pytest.mark.parametrize(("loss", "reference", "options"), [CASES[0], CASES[3]])
def test_ranks(loss, reference, options, shape):
    x, t = 2 * normal(*shape), normal(*shape, seed=1)
    check_against_torch(loss, reference, [x], [t], options, on_runtime=["static", "symbolic", "unknown"])


@pytest.mark.parametrize(("loss", "reference", "options"), CASES)
def test_kinks_and_extremes(loss, reference, options):
    """On the thresholds, at 0 and far away the slope is torch's."""
    x = np.array([0.0, 1.0, -1.0, 0.3, -0.3, 1e4, -1e4])
    check_against_torch(loss, reference, [x], [np.zeros(7)], {**options, "reduction": "sum"}, differences=False)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("log_input", [False, True])
def test_poisson_nll(log_input, full, reduction):
    x = normal(3, 4) if log_input else uniform(3, 4, low=0.1, high=3)
    t = np.array([[0.0, 1.0, 2.0, 3.0], [5.0, 0.0, 1.0, 7.0], [1.0, 4.0, 0.5, 1.5]])
    options = {"log_input": log_input, "full": full, "reduction": reduction}
    check_against_torch(losses.poisson_nll, functional.poisson_nll_loss, [x], [t], options)


def test_poisson_nll_of_rate_zero():
    """`eps` keeps the logarithm finite; in the check's float64 as in torch."""
    options = {"log_input": False, "eps": 1e-3}
    check_against_torch(
        losses.poisson_nll, functional.poisson_nll_loss, [np.zeros(3)], [np.arange(3.0)], options, differences=False
    )


def gaussian_reference(x, variance, t, **options):
    return functional.gaussian_nll_loss(x, t, variance, **options)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("variance_shape", [(4, 3), (4, 1), (4,)])
def test_gaussian_nll(variance_shape, full, reduction):
    x, t = normal(4, 3), normal(4, 3, seed=1)
    variance = uniform(*variance_shape, low=0.2, high=2, seed=2)
    options = {"full": full, "reduction": reduction}
    check_against_torch(losses.gaussian_nll, gaussian_reference, [x, variance], [t], options)


def test_gaussian_nll_of_small_variance():
    """Below eps the value and the slope of the mean are torch's; the variance has no slope there (torch has one)."""
    x, t, variance = np.array([1.0, 2.0]), np.array([1.1, 1.0]), np.array([0.0, 1e-3])
    d, v = x - t, np.array([1e-2, 1e-2])
    expected = (np.log(v) + d * d / v) / 2
    check_loss(
        functools.partial(losses.gaussian_nll, eps=1e-2, reduction="none"),
        [x, variance],
        [t],
        expected,
        [d / v, np.zeros(2)],
    )


@pytest.mark.parametrize(("loss", "reference", "options"), CASES)
def test_float16(loss, reference, options):
    x, t = 2 * normal(4, 3), normal(4, 3, seed=1)
    model, feeds = loss_model(functools.partial(loss, **options), [x], [t], dtype=np.float16)
    result = run_on_runtime(model, feeds)["loss"]
    wide, feeds = loss_model(functools.partial(loss, **options), [x], [t])
    assert result.dtype == np.float16
    # Half precision has three digits.
    np.testing.assert_allclose(result, run_on_runtime(wide, feeds)["loss"], rtol=3e-3)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (functools.partial(losses.huber, delta=0.0), "delta > 0, not 0.0"),
        (functools.partial(losses.smooth_l1, beta=-1.0), "beta >= 0, not -1.0"),
        (functools.partial(losses.mse, reduction="avg"), "reduction='avg' is not known; use one of 'mean', 'sum'"),
    ],
)
def test_errors(loss, message):
    with pytest.raises(OnwardError, match=message):
        loss_model(loss, [normal(2)], [normal(2)])


def test_gaussian_eps():
    with pytest.raises(OnwardError, match="eps > 0, not 0"):
        loss_model(functools.partial(losses.gaussian_nll, eps=0), [normal(2), normal(2)], [normal(2)])

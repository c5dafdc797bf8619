"""Losses of probabilities and of the logits of two classes."""

import functools

import numpy as np
import pytest
import torch
from torch.nn import functional

from onward import gradient, losses
from onward.errors import OnwardError
from onward.testing import check_loss, loss_model, run_on_runtime

from .torch_parity import check_against_torch, normal, uniform

REDUCTIONS = ["mean", "sum", "none"]
ROW = [0.5, 2.0, 1.5]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("options", [{}, {"weight": ROW}])
@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 2, 2, 3)])
def test_bce(shape, options, reduction):
    x, t = uniform(*shape, low=0.2, high=0.8), uniform(*shape, seed=1)
    options = {**options, "reduction": reduction}
    check_against_torch(losses.bce, functional.binary_cross_entropy, [x], [t], options)


def test_bce_of_certain_predictions():
    """The value is torch's, with logarithms cut at -100; the slope is 0 there, where torch's is 1e12."""
    x, t = np.array([0.0, 1.0, 0.0, 1.0]), np.array([0.0, 1.0, 1.0, 0.0])
    expected = functional.binary_cross_entropy(torch.tensor(x), torch.tensor(t), reduction="none").numpy()
    assert list(expected) == [0, 0, 100, 100]
    bce = functools.partial(losses.bce, reduction="none")
    check_loss(bce, [x], [t], expected, [[1.0, -1.0, 0.0, 0.0]], differences=False)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    "options", [{}, {"weight": ROW}, {"pos_weight": [3.0, 0.5, 1.0]}, {"weight": ROW, "pos_weight": [3.0]}]
)
@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 2, 2, 3)])
def test_bce_with_logits(shape, options, reduction):
    x, t = normal(*shape), uniform(*shape, seed=1)
    options = {**options, "reduction": reduction}
    check_against_torch(losses.bce_with_logits, functional.binary_cross_entropy_with_logits, [x], [t], options)


EXTREME = np.array([1000.0, -1000, 1000, -1000, 30, -30, 0])
SIDES = np.array([1.0, 0, 0, 1, 0, 1, 1])


@pytest.mark.parametrize("options", [{}, {"pos_weight": [3.0]}])
def test_extreme_logits(options):
    """The original's loss is inf and its gradient nan from logit 17 on."""
    options = {**options, "reduction": "none"}
    reference = functional.binary_cross_entropy_with_logits
    check_against_torch(losses.bce_with_logits, reference, [EXTREME], [SIDES], options, differences=False)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("loss", [losses.bce_with_logits, losses.binary_focal, losses.soft_margin])
def test_extreme_logits_of_every_type(loss, dtype):
    """onnxruntime computes Softplus as log(1 + exp(x)) in all types but float."""
    model, feeds = loss_model(functools.partial(loss, reduction="sum"), [EXTREME], [SIDES], dtype=dtype)
    result = run_on_runtime(gradient(model, wrt=["prediction"]), feeds)
    assert np.isfinite(result["loss"])
    assert np.isfinite(result["prediction_grad"]).all()


def focal_formula(x, t, alpha=0.25, gamma=2.0, reduction="mean"):
    """The paper's formula as it is printed."""
    p = torch.sigmoid(x)
    p_t = torch.where(t == 1, p, 1 - p)
    alpha_t = 1.0 if alpha is None else torch.where(t == 1, alpha, 1 - alpha).double()
    rows = -alpha_t * (1 - p_t) ** gamma * torch.log(p_t)
    return rows if reduction == "none" else getattr(rows, reduction)()


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("options", [{}, {"alpha": None}, {"alpha": 0.6, "gamma": 0.5}, {"gamma": 0.0}, {"gamma": 3.0}])
@pytest.mark.parametrize("shape", [(5,), (2, 3, 2)])
def test_binary_focal(shape, options, reduction):
    x, t = normal(*shape), np.random.default_rng(1).choice([0.0, 1.0], size=shape)
    check_against_torch(losses.binary_focal, focal_formula, [x], [t], {**options, "reduction": reduction})


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_binary_focal_of_extreme_logits(gamma):
    """Right predictions cost nothing, wrong ones their logit, and no slope is nan, also for gamma below 1."""
    expected = np.where(np.sign(EXTREME) == 2 * SIDES - 1, 0, np.abs(EXTREME))
    expected[-1] = np.log(2) * 0.5**gamma
    slope = np.array([0, 0, 1, -1, 1, -1, 0])
    focal = functools.partial(losses.binary_focal, alpha=None, gamma=gamma, reduction="none")
    for dtype in (np.float32, np.float64):
        model, feeds = loss_model(focal, [EXTREME], [SIDES], dtype=dtype)
        result = run_on_runtime(
            gradient(model, wrt=["prediction"]), {**feeds, "loss_grad": np.ones(EXTREME.shape, dtype)}
        )
        np.testing.assert_allclose(result["loss"], expected, rtol=1e-5, atol=1e-12)
        np.testing.assert_allclose(result["prediction_grad"][:-1], slope[:-1], atol=1e-9)


def distribution(*shape, seed):
    p = uniform(*shape, seed=seed)
    return p / p.sum(1, keepdims=True)


# torch announces that its mean will become the batchmean.
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")
@pytest.mark.parametrize("reduction", [*REDUCTIONS, "batchmean"])
@pytest.mark.parametrize("log_target", [False, True])
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 2)])
def test_kl_div(shape, log_target, reduction):
    x, t = np.log(distribution(*shape, seed=0)), distribution(*shape, seed=1)
    t.flat[0] = 0 if not log_target else t.flat[0]
    options = {"log_target": log_target, "reduction": reduction}
    check_against_torch(losses.kl_div, functional.kl_div, [x], [np.log(t) if log_target else t], options)


@pytest.mark.parametrize("loss", [losses.bce, losses.bce_with_logits, losses.binary_focal, losses.kl_div])
def test_float16(loss):
    """Smaller numbers than float16 has do not become 0 by a literal."""
    x, t = uniform(4, 3, low=0.05, high=0.95), np.random.default_rng(1).choice([0.0, 1.0], size=(4, 3))
    x[0, 0] = 0.0
    wide, feeds = loss_model(loss, [x], [t])
    expected = run_on_runtime(gradient(wide, wrt=["prediction"]), feeds)
    model, feeds = loss_model(loss, [x], [t], dtype=np.float16)
    result = run_on_runtime(gradient(model, wrt=["prediction"]), feeds)
    assert result["loss"].dtype == np.float16
    # Half precision has three digits.
    np.testing.assert_allclose(result["loss"], expected["loss"], rtol=5e-3)
    np.testing.assert_allclose(result["prediction_grad"], expected["prediction_grad"], rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize(
    ("loss", "options", "message"),
    [
        (
            losses.bce,
            {"reduction": "batchmean"},
            "reduction='batchmean' is not known; use one of 'mean', 'sum', 'none'",
        ),
        (losses.kl_div, {"reduction": "avg"}, "use one of 'mean', 'sum', 'none', 'batchmean'"),
        (losses.binary_focal, {"gamma": -0.5}, "binary_focal needs gamma >= 0, not -0.5"),
    ],
)
def test_errors(loss, options, message):
    with pytest.raises(OnwardError, match=message):
        loss_model(functools.partial(loss, **options), [normal(2)], [normal(2)])

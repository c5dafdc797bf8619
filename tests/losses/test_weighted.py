"""A weight for each row: against torch's rows, and against the loss as it was where all weights are alike."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import onward
from onward import losses
from onward.errors import OnwardError
from onward.testing import check_loss, loss_model, run_on_runtime

from .torch_parity import labels, normal, signs, uniform

ROWS, CLASSES = 5, 4
WEIGHTS = np.array([0.5, 0.0, 3.0, 1.0, 2.5])
CLASS_WEIGHTS = [0.5, 2.0, 1.5, 1.0]
LABELS = labels(ROWS, classes=CLASSES)
X = normal(ROWS, CLASSES)
CTC = [labels(ROWS, 2, classes=3) + 1, np.full(ROWS, 6), np.array([2, 1, 2, 0, 1])]

# Each loss: predictions, targets, options.
CASES: dict[str, tuple[list[np.ndarray], list[np.ndarray], dict[str, Any]]] = {
    "mse": ([X], [normal(ROWS, CLASSES, seed=2)], {}),
    "l1": ([X], [normal(ROWS, CLASSES, seed=2)], {}),
    "huber": ([X], [normal(ROWS, CLASSES, seed=2)], {"delta": 0.5}),
    "smooth_l1": ([normal(ROWS)], [normal(ROWS, seed=2)], {"beta": 0.5}),
    "poisson_nll": ([X], [uniform(ROWS, CLASSES, high=5.0)], {}),
    "gaussian_nll": ([X, uniform(ROWS, CLASSES, low=0.5)], [normal(ROWS, CLASSES, seed=2)], {}),
    "cross_entropy": ([X], [LABELS], {"label_smoothing": 0.1}),
    "soft_cross_entropy": ([X], [np.full((ROWS, CLASSES), 0.25)], {"weight": CLASS_WEIGHTS}),
    "nll": ([X], [LABELS], {}),
    "focal": ([X], [LABELS], {"ignore_index": 1}),
    "multi_margin": ([X], [LABELS], {"weight": CLASS_WEIGHTS}),
    "bce": ([uniform(ROWS, 1, low=0.1, high=0.9)], [uniform(ROWS, 1, seed=2)], {}),
    "bce_with_logits": ([X], [uniform(ROWS, CLASSES, seed=2)], {"pos_weight": 2.0}),
    "binary_focal": ([X], [uniform(ROWS, CLASSES, seed=2).round()], {}),
    "kl_div": ([X], [uniform(ROWS, CLASSES, seed=2)], {}),
    "hinge": ([X], [signs(ROWS, CLASSES)], {}),
    "hinge_embedding": ([X], [signs(ROWS, CLASSES)], {}),
    "soft_margin": ([X], [signs(ROWS, CLASSES)], {}),
    "cosine_embedding": ([X, normal(ROWS, CLASSES, seed=3)], [signs(ROWS)], {}),
    "triplet": ([X, normal(ROWS, CLASSES, seed=3), normal(ROWS, CLASSES, seed=4)], [], {}),
    "ctc": ([normal(6, ROWS, CLASSES)], CTC, {"logits": True}),
}


def value(loss: losses.Loss, predictions: list[np.ndarray], targets: list[np.ndarray], dims: str = "symbolic") -> Any:
    model, feeds = loss_model(loss, predictions, targets, dtype=np.float32, dims=dims)
    return run_on_runtime(model, feeds)["loss"]


def test_every_loss_has_a_case() -> None:
    assert sorted(CASES) == losses.names()


@pytest.mark.parametrize("name", CASES)
def test_equal_weights_change_nothing(name: str) -> None:
    predictions, targets, options = CASES[name]
    loss = functools.partial(losses.get(name), **options)
    got = value(losses.weighted(loss), predictions, [*targets, np.full(ROWS, 3.0)])
    np.testing.assert_allclose(got, value(loss, predictions, targets), rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in CASES if name != "ctc"])
def test_rows_of_weight_2_count_twice(name: str) -> None:
    """Whole weights are the loss of repeated rows, whatever its mean divides by."""
    predictions, targets, options = CASES[name]
    loss = functools.partial(losses.get(name), **options)
    times = np.array([1, 0, 3, 2, 1])
    got = value(losses.weighted(loss), predictions, [*targets, times.astype(float)])
    repeated = [np.repeat(x, times, axis=0) for x in predictions], [np.repeat(t, times, axis=0) for t in targets]
    np.testing.assert_allclose(got, value(loss, *repeated), rtol=1e-5)


@pytest.mark.parametrize("ignore_index", [None, 1])
@pytest.mark.parametrize("weight", [None, CLASS_WEIGHTS])
@pytest.mark.parametrize("inner", [(), (3,)])
def test_class_weights_as_in_torch(
    weight: list[float] | None, ignore_index: int | None, inner: tuple[int, ...]
) -> None:
    """torch's mean with class weights is sum(w l) / sum(w), and so it is with both kinds of weights."""
    x, y = normal(ROWS, CLASSES, *inner), labels(ROWS, *inner, classes=CLASSES)
    tensor = torch.tensor(x, requires_grad=True)
    classes = torch.ones(CLASSES, dtype=torch.float64) if weight is None else torch.tensor(weight, dtype=torch.float64)
    rows = functional.cross_entropy(
        tensor, torch.tensor(y), weight=classes, reduction="none", ignore_index=-100 if ignore_index is None else 1
    )
    shares = classes[torch.tensor(y)] * torch.tensor(y != (-100 if ignore_index is None else 1))
    w = torch.tensor(WEIGHTS).reshape(-1, *[1] * len(inner))
    expected = (w * rows).sum() / (w * shares).sum()
    (slope,) = torch.autograd.grad(expected, tensor)
    loss = losses.weighted(functools.partial(losses.cross_entropy, weight=weight, ignore_index=ignore_index))
    check_loss(loss, [x], [y, WEIGHTS], expected.detach().numpy(), [slope.numpy()], on_runtime=["static", "symbolic"])


@pytest.mark.parametrize(
    ("loss", "reference"),
    [
        (losses.mse, functional.mse_loss),
        (losses.huber, functional.huber_loss),
        (losses.bce_with_logits, functional.binary_cross_entropy_with_logits),
    ],
)
def test_rows_of_several_elements_as_in_torch(loss: losses.Loss, reference: Any) -> None:
    x, t = normal(ROWS, 3, 2), uniform(ROWS, 3, 2, seed=2)
    tensor = torch.tensor(x, requires_grad=True)
    rows = reference(tensor, torch.tensor(t), reduction="none").mean((1, 2))
    expected = (torch.tensor(WEIGHTS) * rows).sum() / WEIGHTS.sum()
    (slope,) = torch.autograd.grad(expected, tensor)
    check_loss(losses.weighted(loss), [x], [t, WEIGHTS], expected.detach().numpy(), [slope.numpy()])


def test_ctc_as_in_torch() -> None:
    x = normal(6, ROWS, CLASSES)
    tensor = torch.tensor(x, requires_grad=True)
    arguments = [torch.tensor(t) for t in CTC]
    rows = functional.ctc_loss(tensor.log_softmax(-1), *arguments, reduction="none") / arguments[2].clamp(min=1)
    expected = (torch.tensor(WEIGHTS) * rows).sum() / WEIGHTS.sum()
    (slope,) = torch.autograd.grad(expected, tensor)
    for first in (False, True):
        loss = losses.weighted(functools.partial(losses.ctc, logits=True, batch_first=first))
        given, wanted = (a.swapaxes(0, 1) if first else a for a in (x, slope.numpy()))
        check_loss(
            loss,
            [given],
            [*CTC, WEIGHTS],
            expected.detach().numpy(),
            [wanted],
            differences=False,
            on_runtime=["symbolic"],
        )


def test_other_reductions() -> None:
    predictions, targets, _ = CASES["kl_div"]
    rows = value(functools.partial(losses.kl_div, reduction="none"), predictions, targets).sum(1)
    for reduction, expected in [("sum", WEIGHTS @ rows), ("batchmean", WEIGHTS @ rows / WEIGHTS.sum())]:
        loss = losses.weighted(functools.partial(losses.kl_div, reduction=reduction))
        np.testing.assert_allclose(value(loss, predictions, [*targets, WEIGHTS]), expected, rtol=1e-5)
    with pytest.raises(OnwardError, match=r"mse has reduction='none'; with weights it is 'mean' or 'sum'"):
        losses.weighted(functools.partial(losses.mse, reduction="none"))


def test_no_weight_at_all_is_a_loss_of_0_without_slope() -> None:
    predictions, targets, _ = CASES["cross_entropy"]
    model, feeds = loss_model(losses.weighted(losses.cross_entropy), predictions, [*targets, np.zeros(ROWS)])
    got = run_on_runtime(onward.gradient(model, wrt=["prediction"], of="loss"), feeds)
    assert got["loss"] == 0
    assert not got["prediction_grad"].any()


@pytest.mark.parametrize("count", [1, ROWS - 1, ROWS + 1])
def test_weights_are_never_broadcast(count: int) -> None:
    predictions, targets, _ = CASES["mse"]
    model, feeds = loss_model(losses.weighted(losses.mse), predictions, [*targets, WEIGHTS], dims="unknown")
    with pytest.raises(Exception, match=r"'sample_weight' must have one number for each row of 'prediction'"):
        run_on_runtime(model, {**feeds, "sample_weight": np.ones(count)})
    column = np.ones((ROWS, 1))
    with pytest.raises(Exception, match=r"[rR]ank"):
        run_on_runtime(model, {**feeds, "sample_weight": column})


def test_a_batch_without_rows_is_refused() -> None:
    predictions, targets, _ = CASES["mse"]
    model, feeds = loss_model(losses.weighted(losses.mse), predictions, [*targets, WEIGHTS], dims="unknown")
    with pytest.raises(Exception, match="there must be a row"):
        run_on_runtime(model, {name: array[:0] for name, array in feeds.items()})


def test_a_function_of_ones_own() -> None:
    def cubic(op: Any, prediction: Any, target: Any, *, reduction: str = "mean") -> Any:
        return losses.reduce(op, op.Pow(op.Abs(prediction - target), 3.0), reduction)

    t = normal(ROWS, CLASSES, seed=2)
    expected = np.average((np.abs(X - t) ** 3).mean(1), weights=WEIGHTS)
    check_loss(losses.weighted(cubic), [X], [t, WEIGHTS], expected)


def test_losses_that_cannot_be_weighted() -> None:
    def plain(op: Any, prediction: Any, target: Any) -> Any:
        return op.ReduceMean(op.Abs(prediction - target), keepdims=0)

    def scalar(op: Any, prediction: Any, target: Any, *, reduction: str = "mean") -> Any:
        return op.ReduceMean(op.Abs(prediction - target), keepdims=0)

    with pytest.raises(OnwardError, match=r"plain cannot be weighted: it has no option `reduction`"):
        losses.weighted(plain)
    predictions, targets, _ = CASES["mse"]
    with pytest.raises(
        OnwardError, match=r"scalar cannot be weighted: for reduction='none' it returned .* not one for"
    ):
        value(losses.weighted(scalar), predictions, [*targets, WEIGHTS])
    with pytest.raises(OnwardError, match="takes 'sample_weight' already"):
        losses.weighted(losses.weighted(losses.mse))

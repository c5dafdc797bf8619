"""Losses of class scores against torch.nn.functional, and focal loss against its formula."""

import functools

import numpy as np
import pytest
import torch
from torch.nn import functional

from onward import gradient, losses
from onward.errors import OnwardError
from onward.testing import loss_model, run_on_runtime

from .torch_parity import check_against_torch, labels, normal, uniform

REDUCTIONS = ["mean", "sum", "none"]
WEIGHT = [0.5, 2.0, 1.5, 1.0]
CLASSES = 4
SHAPES = [(CLASSES,), (5, CLASSES), (3, CLASSES, 2), (2, CLASSES, 2, 3)]
OPTIONS = [{}, {"weight": WEIGHT}, {"ignore_index": 1}, {"weight": WEIGHT, "ignore_index": -100}]


def label_shape(shape):
    return (shape[0], *shape[2:]) if len(shape) > 1 else ()


def sample(shape, ignore_index=None):
    """Scores and labels; the last label is 2, and the first is ignored where there are several."""
    y = np.array(labels(*label_shape(shape), classes=CLASSES))
    if ignore_index is not None:
        y.flat[0] = ignore_index
    y.flat[-1] = 2
    return normal(*shape), y


def on_both(reference):
    """torch ignores -100 unless it is told otherwise; nothing here has that label by accident."""

    def call(x, y, ignore_index=None, **options):
        return reference(x, y, ignore_index=-100 if ignore_index is None else ignore_index, **options)

    return call


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_cross_entropy(shape, options, reduction):
    x, y = sample(shape, options.get("ignore_index"))
    check_against_torch(
        losses.cross_entropy, on_both(functional.cross_entropy), [x], [y], {**options, "reduction": reduction}
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES[1:])
def test_label_smoothing(shape, options, reduction):
    x, y = sample(shape, options.get("ignore_index"))
    options = {**options, "reduction": reduction, "label_smoothing": 0.1}
    check_against_torch(losses.cross_entropy, on_both(functional.cross_entropy), [x], [y], options)


def test_label_smoothing_of_one_row():
    x, y = sample((CLASSES,))
    options = {"weight": WEIGHT, "reduction": "none", "label_smoothing": 1.0}
    check_against_torch(losses.cross_entropy, functional.cross_entropy, [x], [y], options)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("options", [{}, {"weight": WEIGHT}, {"weight": WEIGHT, "label_smoothing": 0.2}])
@pytest.mark.parametrize("shape", SHAPES)
def test_soft_cross_entropy(shape, options, reduction):
    axis = 1 if len(shape) > 1 else 0
    t = uniform(*shape, seed=1)
    t /= t.sum(axis, keepdims=True)
    options = {**options, "reduction": reduction}
    check_against_torch(losses.soft_cross_entropy, functional.cross_entropy, [normal(*shape)], [t], options)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_nll(shape, options, reduction):
    x, y = sample(shape, options.get("ignore_index"))
    check_against_torch(losses.nll, on_both(functional.nll_loss), [x], [y], {**options, "reduction": reduction})


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("options", [{}, {"p": 2, "margin": 0.5}, {"weight": WEIGHT}, {"p": 2, "weight": WEIGHT}])
@pytest.mark.parametrize("shape", SHAPES[:2])
def test_multi_margin(shape, options, reduction):
    x, y = sample(shape)
    options = {**options, "reduction": reduction}
    check_against_torch(losses.multi_margin, functional.multi_margin_loss, [x], [y], options)


def focal_formula(x, y, alpha=None, gamma=2.0, ignore_index=-100, reduction="mean"):
    """The paper's formula, written with a one-hot matrix instead of a gather."""
    axis = 1 if x.ndim > 1 else 0
    counted = y != ignore_index
    onehot = functional.one_hot(torch.where(counted, y, 0), CLASSES).movedim(-1, axis).double()
    p = (torch.softmax(x, axis) * onehot).sum(axis)
    weight = 1.0 if alpha is None else torch.tensordot(alpha, onehot, dims=([0], [axis]))
    rows = torch.where(counted, -weight * (1 - p) ** gamma * torch.log(p), 0)
    if reduction == "none":
        return rows
    return rows.sum() if reduction == "sum" else rows.sum() / counted.sum()


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"alpha": WEIGHT, "gamma": 1.5},
        {"gamma": 0.5},
        {"gamma": 1.0, "ignore_index": 1},
        {"alpha": WEIGHT, "gamma": 0.0, "ignore_index": -1},
    ],
)
@pytest.mark.parametrize("shape", SHAPES)
def test_focal(shape, options, reduction):
    x, y = sample(shape, options.get("ignore_index"))
    check_against_torch(losses.focal, focal_formula, [x], [y], {**options, "reduction": reduction})


def test_focal_without_gamma_is_cross_entropy():
    x, y = sample((5, CLASSES))
    check_against_torch(functools.partial(losses.focal, gamma=0.0), functional.cross_entropy, [x], [y])


EXTREME = np.array([[1000.0, -1000, 0, 0], [-1000, 1000, 1000, 0], [1000, 1000, 1000, 1000], [0, -1000, -1000, 1000]])


@pytest.mark.parametrize(
    ("loss", "reference", "options"),
    [
        (losses.cross_entropy, functional.cross_entropy, {}),
        (losses.cross_entropy, functional.cross_entropy, {"weight": WEIGHT, "ignore_index": 2}),
        (losses.cross_entropy, functional.cross_entropy, {"label_smoothing": 0.1, "weight": WEIGHT}),
        (losses.multi_margin, functional.multi_margin_loss, {"p": 2}),
    ],
)
@pytest.mark.parametrize("y", [[0, 1, 2, 3], [1, 0, 3, 2]])
def test_extreme_scores(loss, reference, options, y):
    # The reference evaluator takes the logarithm of a softmax that has become 0.
    check_against_torch(loss, reference, [EXTREME], [np.array(y)], options, run=run_on_runtime, differences=False)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 3.5])
def test_focal_of_extreme_scores(gamma):
    """-log(p) where p is 0 and 0 where p is 1, with finite slopes also where the power has none."""
    model, feeds = loss_model(
        functools.partial(losses.focal, gamma=gamma, reduction="sum"),
        [EXTREME],
        [np.array([0, 0, 3, 2])],
        dtype=np.float32,
    )
    result = run_on_runtime(gradient(model, wrt=["prediction"]), feeds)
    third = 0.75**gamma * np.log(4)
    np.testing.assert_allclose(result["loss"], 4000 + np.log(2) + third, rtol=1e-5)
    assert np.isfinite(result["prediction_grad"]).all()
    np.testing.assert_allclose(result["prediction_grad"][0], 0)
    np.testing.assert_allclose(result["prediction_grad"][3], [0, 0, -1, 1])


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("options", [{}, {"weight": WEIGHT}, {"ignore_index": 0}])
def test_one_node_with_two_outputs(rank, options):
    """Users who come from onnxruntime-training look for this node in their training models."""
    x, y = sample(SHAPES[rank - 1])
    model, _ = loss_model(functools.partial(losses.cross_entropy, **options), [x], [y])
    assert [node.op_type for node in model.graph.node] == ["SoftmaxCrossEntropyLoss"]
    training = gradient(model, wrt=["prediction"])
    found = [node for node in training.graph.node if node.op_type == "SoftmaxCrossEntropyLoss"]
    assert [len(node.output) for node in found] == [2]


@pytest.mark.parametrize("dims", ["static", "symbolic", "unknown"])
@pytest.mark.parametrize(
    "loss", [losses.cross_entropy, functools.partial(losses.cross_entropy, label_smoothing=0.1), losses.focal]
)
def test_dimensions(loss, dims):
    x, y = sample((3, CLASSES, 2))
    wide, feeds = loss_model(loss, [x], [y])
    expected = run_on_runtime(gradient(wide, wrt=["prediction"]), feeds)
    for dtype, tolerance in ((np.float32, 1e-5), (np.float16, 1e-2)):
        model, feeds = loss_model(loss, [x], [y], dtype=dtype, dims=dims)
        got = run_on_runtime(gradient(model, wrt=["prediction"]), feeds)
        assert got["loss"].dtype == got["prediction_grad"].dtype == dtype
        np.testing.assert_allclose(got["loss"], expected["loss"], rtol=tolerance)
        np.testing.assert_allclose(got["prediction_grad"], expected["prediction_grad"], atol=tolerance)


@pytest.mark.parametrize("opset", [9, 11, 12, 13, 22])
@pytest.mark.parametrize("loss", [losses.cross_entropy, losses.soft_cross_entropy, losses.multi_margin])
def test_opsets(loss, opset):
    """The builder asks for the opset that has the operator; softmax over one axis exists since opset 13."""
    shape = (2, CLASSES, 3) if loss is not losses.multi_margin else (3, CLASSES)
    x, y = sample(shape)
    targets = [uniform(*shape)] if loss is losses.soft_cross_entropy else [y]
    model, feeds = loss_model(loss, [x], targets, opset=opset, dtype=np.float32)
    expected, wide = loss_model(loss, [x], targets)
    np.testing.assert_allclose(run_on_runtime(model, feeds)["loss"], run_on_runtime(expected, wide)["loss"], rtol=1e-5)


@pytest.mark.parametrize(
    ("loss", "options", "message"),
    [
        (losses.cross_entropy, {"reduction": "batchmean"}, "reduction='batchmean' is not known; use one of 'mean'"),
        (
            losses.cross_entropy,
            {"weight": [1.0, 2.0]},
            r"`weight` needs one number a class, shape \[4\], not shape \[2\]",
        ),
        (losses.nll, {"weight": 2.0}, r"`weight` needs one number a class, shape \[4\], not shape \[\]"),
        (losses.focal, {"alpha": 0.25}, r"`alpha` needs one number a class"),
        (losses.focal, {"gamma": -1.0}, "gamma >= 0, not -1.0"),
        (losses.cross_entropy, {"label_smoothing": 1.5}, "label_smoothing between 0 and 1, not 1.5"),
        (losses.soft_cross_entropy, {"label_smoothing": -0.5}, "label_smoothing between 0 and 1, not -0.5"),
        (losses.multi_margin, {"p": 3}, "p = 1 or p = 2, not 3"),
    ],
)
def test_errors(loss, options, message):
    x, y = sample((5, CLASSES))
    with pytest.raises(OnwardError, match=message):
        loss_model(functools.partial(loss, **options), [x], [x if loss is losses.soft_cross_entropy else y])

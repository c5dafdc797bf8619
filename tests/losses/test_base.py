"""What counts as a loss, its targets, its names; and that the check for losses finds mistakes."""

import functools

import numpy as np
import onnx_ir as ir
import pytest

from onward import losses
from onward.errors import OnwardError, UnknownNameError
from onward.testing import check_loss, loss_model

from .torch_parity import labels, normal


def value(*shape, dtype=ir.DataType.FLOAT, name="x"):
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))


def described(targets):
    return {
        name: (target.name, target.dtype.name, None if target.shape is None else [str(dim) for dim in target.shape])
        for name, target in targets.items()
    }


def power(op, prediction, target, exponent=3.0):
    """A loss as a user writes it: no decorator, an option with a default."""
    return op.ReduceMean(op.Pow(op.Abs(prediction - target), exponent), keepdims=0)


def distance(op, a, b, target):
    return op.ReduceMean(op.Abs(op.Abs(a - b) - target), keepdims=0)


@pytest.mark.parametrize(
    ("loss", "shape", "expected"),
    [
        (losses.mse, ("N", 3), {"target": ("target", "FLOAT", ["N", "3"])}),
        (losses.cross_entropy, ("N", 10), {"labels": ("labels", "INT64", ["N"])}),
        (losses.cross_entropy, ("N", 10, "H", None), {"labels": ("labels", "INT64", ["N", "H", "None"])}),
        (losses.nll, (10,), {"labels": ("labels", "INT64", [])}),
        (
            functools.partial(losses.cross_entropy, reduction="sum"),
            (2, 3, 4),
            {"labels": ("labels", "INT64", ["2", "4"])},
        ),
        (power, ("N", 3), {"target": ("target", "FLOAT", ["N", "3"])}),
        (functools.partial(power, exponent=4.0), ("N",), {"target": ("target", "FLOAT", ["N"])}),
        (lambda op, x: op.ReduceMean(x, keepdims=0), ("N",), {}),
        # A target that is bound is none.
        (functools.partial(losses.mse, target=0.0), ("N",), {}),
    ],
)
def test_target_inputs(loss, shape, expected):
    assert described(losses.target_inputs(loss, [value(*shape)])) == expected


def test_targets_of_several_predictions():
    pair = [value("N", 3), value("N", 3)]
    assert described(losses.target_inputs(losses.cosine_embedding, pair)) == {"target": ("target", "FLOAT", ["N"])}
    assert described(losses.target_inputs(losses.gaussian_nll, pair)) == {"target": ("target", "FLOAT", ["N", "3"])}
    assert described(losses.target_inputs(distance, pair)) == {"target": ("target", "FLOAT", ["N", "3"])}
    assert losses.target_inputs(losses.triplet, [*pair, value("N", 3)]) == {}


def test_targets_of_unknown_rank():
    unknown = ir.Value(name="x", type=ir.TensorType(ir.DataType.DOUBLE))
    assert described(losses.target_inputs(losses.mse, [unknown])) == {"target": ("target", "DOUBLE", None)}
    assert described(losses.target_inputs(losses.cross_entropy, [unknown])) == {"labels": ("labels", "INT64", None)}


def test_targets_are_fresh():
    x = value("N", 3)
    first, second = (losses.target_inputs(losses.mse, [x])["target"] for _ in range(2))
    assert first is not second
    assert first.graph is None
    assert first.shape is not x.shape


def test_decorated_functions_stay_functions():
    @losses.targets(noise=losses.one_per_row)
    def noisy(op, prediction, noise, *, scale=1.0):
        """Its docstring."""
        return op.ReduceMean(prediction, keepdims=0) + op.ReduceMean(noise, keepdims=0) * scale

    assert (noisy.__name__, noisy.__doc__) == ("noisy", "Its docstring.")
    x, n = normal(2, 3), normal(2, seed=1)
    check_loss(functools.partial(noisy, scale=2.0), [x], [n], x.mean() + 2 * n.mean(), [np.full((2, 3), 1 / 6)])


def test_targets_may_stand_between_predictions():
    @losses.targets(target=losses.like_prediction)
    def scaled(op, prediction, target, scale):
        return op.ReduceMean((prediction - target) * scale, keepdims=0)

    x, t, s = (normal(3, seed=seed) for seed in range(3))
    check_loss(scaled, [x, s], {"target": t}, ((x - t) * s).mean(), [s / 3, (x - t) / 3])


def test_user_losses():
    x, t = normal(4, 3), normal(4, 3, seed=1)
    check_loss(power, [x], [t], (np.abs(x - t) ** 3).mean())
    check_loss(functools.partial(power, exponent=2.0), [x], [t], ((x - t) ** 2).mean(), [(x - t) / 6])
    check_loss(distance, [x, t], [np.ones((4, 3))], np.abs(np.abs(x - t) - 1).mean())


def test_names():
    assert losses.get("mse") is losses.mse
    assert losses.get(power) is power
    assert set(losses.names()) <= set(losses.__all__)
    assert "cross_entropy" in losses.names()
    with pytest.raises(UnknownNameError, match=r"there is no loss 'msee'; there are bce, bce_with_logits, .*, triplet"):
        losses.get("msee")


def test_wrong_number_of_predictions():
    message = r"the loss triplet takes 3 predictions \(anchor, positive, negative\), but 1 were given"
    with pytest.raises(OnwardError, match=message):
        losses.target_inputs(functools.partial(losses.triplet, swap=True), [value(3)])


def test_what_is_no_loss():
    with pytest.raises(OnwardError, match="is not a loss: a loss is a function"):
        losses.target_inputs(lambda op: op, [value(3)])
    with pytest.raises(OnwardError, match=r"@targets names \['labels'\], but .*power has the parameters"):
        losses.targets(labels=losses.class_indices)(power)
    with pytest.raises(OnwardError, match="returned tuple; a loss returns one"):
        loss_model(lambda op, x: (x, x), [normal(2)], [])
    with pytest.raises(OnwardError, match="the type of the prediction is unknown"):
        losses.target_inputs(losses.mse, [ir.Value(name="x")])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([normal(2)], [np.zeros(2)], 0.0), "loss: float64"),
        (([normal(2)], [np.zeros(2)], (normal(2) ** 2).mean(), [normal(2) + 1e-3]), "prediction_grad: float64"),
        (([normal(2)], [np.zeros(3)], 0.0), r"target 'target' is declared with shape \[2\], but given with \(3,\)"),
        (([normal(2)], [np.zeros(2, int)], 0.0), "target 'target' is declared DOUBLE, but given as INT64"),
        (([normal(2)], {"labels": np.zeros(2)}, 0.0), r"the targets of the loss are \['target'\], not \['labels'\]"),
    ],
)
def test_check_loss_finds_mistakes(arguments, message):
    with pytest.raises(AssertionError, match=message):
        check_loss(losses.mse, *arguments)


def test_check_loss_compares_with_differences():
    """A loss whose gradient is not that of its value: rounding has slope 0 on the way, differences see the steps."""
    rounded = lambda op, x: op.ReduceSum(x * op.Floor(x), keepdims=0)  # noqa: E731
    x = np.array([0.5, 1.99999])
    check_loss(rounded, [x[:1]], [], 0.0, [[0.0]])
    with pytest.raises(AssertionError, match="first derivative"):
        check_loss(rounded, [x], [], 1.99999, [[0.0, 1.0]])


def test_labels_are_checked_for_their_shape():
    with pytest.raises(AssertionError, match="target 'labels' is declared with shape"):
        check_loss(losses.cross_entropy, [normal(2, 3)], [labels(3, classes=3)], 0.0)

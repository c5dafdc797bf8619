"""Learning rates, losses and penalties on onnxruntime's values."""

from __future__ import annotations

import copy
import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.testing import assert_allclose
from sklearn.linear_model import SGDRegressor

from onward.errors import OnwardError
from onward.onnxcustom.training.sgd_learning_loss import (
    AbsoluteLearningLoss,
    BaseLearningLoss,
    ElasticLearningLoss,
    NegLogLearningLoss,
    SquareLearningLoss,
)
from onward.onnxcustom.training.sgd_learning_penalty import (
    BaseLearningPenalty,
    ElasticLearningPenalty,
    NoLearningPenalty,
)
from onward.onnxcustom.training.sgd_learning_rate import BaseLearningRate, LearningRateSGD, LearningRateSGDNesterov
from onward.onnxcustom.utils.onnxruntime_helper import get_ort_device, numpy_to_ort_value

CPU = get_ort_device("cpu")


def value(*numbers: float) -> Any:
    return numpy_to_ort_value(np.array(numbers, np.float32)[:, None])


# Rates --------------------------------------------------------------------------------------------------------------


def test_rates_by_name() -> None:
    for name, kind in (
        ("SGD", LearningRateSGD),
        ("LearningRateSGD", LearningRateSGD),
        ("Nesterov", LearningRateSGDNesterov),
        ("SGDNesterov", LearningRateSGDNesterov),
        ("LearningRateSGDNesterov", LearningRateSGDNesterov),
    ):
        assert type(BaseLearningRate.select(name)) is kind
    rate = LearningRateSGD()
    assert BaseLearningRate.select(rate) is rate
    for number in (0.5, 1, np.float32(2)):
        assert BaseLearningRate.select(number).eta0 == number  # type: ignore[attr-defined]
    assert BaseLearningRate.select("Nesterov", momentum=0.5).momentum == 0.5  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="unexpected learning rate 'adam'; use a number or one of SGD"):
        BaseLearningRate.select("adam")


def test_schedules() -> None:
    constant = list(LearningRateSGD(learning_rate="constant").loop(5))
    assert constant == [0.01] * 5
    falling = list(LearningRateSGD(0.1, power_t=0.5).loop(4))
    assert_allclose(falling, [0.1, 0.1 / 2**0.5, 0.1 / 3**0.5, 0.05])
    optimal = list(LearningRateSGD(learning_rate="optimal").loop())
    assert optimal[0] == 0.01
    assert all(after < before for before, after in itertools.pairwise(optimal))
    assert_allclose(optimal[999], 0.0095656, rtol=1e-5)
    rate = LearningRateSGD()
    with pytest.raises(RuntimeError, match="before init_learning_rate"):
        _ = rate.value
    rate.init_learning_rate()
    assert rate.update_learning_rate(0).value == 0.01
    with pytest.raises(ValueError, match="use one of invscaling, optimal, constant"):
        LearningRateSGD(learning_rate="Constant")


def test_schedules_fall_as_scikit_learns() -> None:
    """One row a pass: the weight moves by its rate, where the gradient is 1."""
    rates = []
    for passes in (1, 2, 3):
        model = SGDRegressor(
            loss="epsilon_insensitive", epsilon=0, alpha=0, penalty=None, fit_intercept=False, max_iter=passes, tol=None
        )
        rates.append(model.fit([[1.0]], [100.0]).coef_[0])
    assert_allclose(np.diff(rates), list(LearningRateSGD().loop(3))[1:], rtol=1e-6)


def test_repr_ends_with_the_rate() -> None:
    rate = LearningRateSGDNesterov(0.5)
    shown = "LearningRateSGDNesterov(eta0=0.5, alpha=0.0001, power_t=0.25, learning_rate='invscaling', momentum=0.9, "
    assert repr(rate) == shown + "nesterov=True), value=None"
    rate.init_learning_rate()
    assert repr(rate).endswith("value=0.5")


def test_steps_are_in_place() -> None:
    weight, gradient = value(1, 2), value(4, -4)
    rate = LearningRateSGD(0.5)
    rate.build_onnx_function(15, CPU, 1)
    rate.init_learning_rate()
    rate.update_weights(0, CPU, weight, gradient, 10)
    assert_allclose(weight.numpy()[:, 0], [0.8, 2.2])
    held = onnxruntime.OrtValue(weight)
    rate.update_weights(0, CPU, held, gradient.numpy(), 10)
    assert_allclose(weight.numpy()[:, 0], [0.6, 2.4], rtol=1e-6)
    with pytest.raises(RuntimeError, match="velocity must be None"):
        rate.update_weights(0, CPU, weight, gradient, 10, velocity=value(0, 0))
    with pytest.raises(TypeError, match="changed in place; give an OrtValue"):
        rate.update_weights(0, CPU, np.zeros((2, 1), np.float32), gradient, 10)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum(nesterov: bool) -> None:
    draw = np.random.default_rng(0)
    w, v = draw.normal(size=(3, 1)).astype(np.float32), np.zeros((3, 1), np.float32)
    weight, velocity = numpy_to_ort_value(w), numpy_to_ort_value(v)
    rate = LearningRateSGDNesterov(0.1, momentum=0.8, nesterov=nesterov)
    assert rate.needs_grad
    rate.build_onnx_function(15, CPU, 1)
    rate.init_learning_rate()
    for _ in range(3):
        g = draw.normal(size=(3, 1)).astype(np.float32)
        v = 0.8 * v - 0.02 * g
        w = w + (0.8 * v - 0.02 * g if nesterov else v)
        rate.update_weights(0, CPU, weight, numpy_to_ort_value(g), 5, velocity)
        assert_allclose(weight.numpy(), w, rtol=1e-5, atol=1e-6)
        assert_allclose(velocity.numpy(), v, rtol=1e-5, atol=1e-6)
    with pytest.raises(RuntimeError, match="needs a velocity"):
        rate.update_weights(0, CPU, weight, weight, 5)


def test_what_is_not_built() -> None:
    rate = LearningRateSGD(0.1).init_learning_rate()
    with pytest.raises(RuntimeError, match="call build_onnx_function of this LearningRateSGD first"):
        rate.update_weights(0, CPU, value(1), value(1), 1)
    with pytest.raises(RuntimeError, match="call build_onnx_function"):
        SquareLearningLoss().loss_gradient(CPU, value(1), value(1))
    with pytest.raises(RuntimeError, match="call build_onnx_function"):
        SquareLearningLoss().build_onnx_score_function(15, CPU, None)
    with pytest.raises(RuntimeError, match="call build_onnx_function"):
        ElasticLearningPenalty().penalty_loss(CPU, value(1))


# Losses -------------------------------------------------------------------------------------------------------------

LOSSES: dict[str, BaseLearningLoss] = {
    "square": SquareLearningLoss(),
    "absolute": AbsoluteLearningLoss(),
    "elastic": ElasticLearningLoss(0.3, 0.6),
    "log": NegLogLearningLoss(),
}


def test_losses_by_name() -> None:
    for names, kind in (
        ("square_error square SquareLearningLoss", SquareLearningLoss),
        ("absolute_error absolute AbsoluteLearningLoss", AbsoluteLearningLoss),
        ("elastic_error elastic ElasticLearningLoss", ElasticLearningLoss),
        ("log neglog logloss NegLogLearningLoss", NegLogLearningLoss),
    ):
        assert all(type(BaseLearningLoss.select(name)) is kind for name in names.split())
    assert BaseLearningLoss.select("elastic", l1_weight=0.1).l1_weight == 0.1  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="unexpected loss 'squared_error'; use one of square_error"):
        BaseLearningLoss.select("squared_error")


@pytest.mark.parametrize("weight_name", [None, "weight", "importance"])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_the_slopes_of_losses(name: str, weight_name: str | None) -> None:
    """In double, with central differences: the signs of the original's absolute and elastic losses were wrong."""
    loss = copy.deepcopy(LOSSES[name])
    loss.build_onnx_function(15, CPU, weight_name, np.float64)
    draw = np.random.default_rng(0)
    expected = (draw.random((6, 1)) > 0.5).astype(np.int64) if name == "log" else draw.normal(size=(6, 1))
    predicted, weight = draw.normal(size=(6, 1)), None if weight_name is None else draw.random(6)

    def total(p: np.ndarray) -> float:
        return float(loss.loss_gradient(CPU, expected, p, weight)[0].numpy()[0])

    gradient = loss.loss_gradient(CPU, expected, predicted, weight)[1].numpy()
    for row in range(6):
        h = np.zeros_like(predicted)
        h[row] = 1e-6
        slope = (total(predicted + h) - total(predicted - h)) / 2e-6
        assert_allclose(gradient[row, 0], slope, rtol=1e-6)
    scores = loss.loss_scores(CPU, expected, predicted, weight).numpy()
    assert scores.shape == (6, 1)
    assert_allclose(scores.sum(), total(predicted), rtol=1e-9)


def test_what_is_compared_has_one_shape() -> None:
    """A vector against a column would be compared each with each."""
    loss = SquareLearningLoss()
    loss.build_onnx_function(15, CPU, "weight")
    column, vector = np.array([[1.0], [2.0]], np.float32), np.array([1.0, 4.0], np.float32)
    got, gradient = loss.loss_gradient(CPU, vector, column)
    assert got.numpy().tolist() == [2]
    assert gradient.shape() == [2, 1]
    with pytest.raises(ValueError, match=r"expected has the shape \[3, 1\], and the prediction \[2, 1\]"):
        loss.loss_gradient(CPU, np.zeros((3, 1), np.float32), column)
    with pytest.raises(ValueError, match="there are 2 rows and 3 weights"):
        loss.loss_gradient(CPU, column, column, np.ones(3, np.float32))
    plain = SquareLearningLoss()
    plain.build_onnx_function(15, CPU, None)
    with pytest.raises(ValueError, match="built without an input for them"):
        plain.loss_gradient(CPU, column, column, np.ones(2, np.float32))


def test_labels_of_any_type() -> None:
    loss = NegLogLearningLoss()
    loss.build_onnx_function(15, CPU, None)
    scores = np.array([[0.3], [-2.0]], np.float32)
    results = {
        dtype: float(loss.loss_gradient(CPU, np.array([[0], [1]], dtype), scores)[0].numpy()[0])
        for dtype in (np.int64, np.int32, np.float32)
    }
    assert len(set(results.values())) == 1
    with pytest.raises(ValueError, match="with fractions"):
        loss.loss_gradient(CPU, np.array([[0.5], [1]], np.float32), scores)


# Penalties ----------------------------------------------------------------------------------------------------------


def test_penalties_by_name() -> None:
    for name in (None, "", "NoLearningPenalty"):
        assert type(BaseLearningPenalty.select(name)) is NoLearningPenalty
    for name in ("elastic", "l1l2", "ElasticLearningPenalty"):
        assert type(BaseLearningPenalty.select(name)) is ElasticLearningPenalty
    with pytest.raises(ValueError, match="unexpected penalty 'l2'"):
        BaseLearningPenalty.select("l2")


def test_penalty() -> None:
    penalty = ElasticLearningPenalty(l1=0.1, l2=0.2)
    penalty.build_onnx_function(15, CPU, 2)
    weights = value(1, -2), value(3)
    loss = numpy_to_ort_value(np.array([5.0], np.float32))
    assert_allclose(penalty.penalty_loss(CPU, loss, *weights).numpy(), [5 + 0.1 * 6 + 0.2 * 14], rtol=1e-6)
    penalty.update_weights(0, CPU, weights[0])
    assert_allclose(weights[0].numpy()[:, 0], [0.6 - 0.1, -1.2 + 0.1], rtol=1e-6)
    with pytest.raises(RuntimeError, match="built for 2 weights; given were 1"):
        penalty.penalty_loss(CPU, loss, weights[0])
    none = NoLearningPenalty()
    none.build_onnx_function(15, CPU, 2)
    assert none.penalty_loss(CPU, loss, *weights) is loss
    assert none.update_weights(0, CPU, weights[0]) is weights[0]


# All ----------------------------------------------------------------------------------------------------------------

BUILT = [
    (LearningRateSGD(0.3), 1),
    (LearningRateSGDNesterov(0.3, momentum=0.5), 1),
    (ElasticLearningPenalty(0.1, 0.2), 1),
    *((loss, None) for loss in LOSSES.values()),
]


@pytest.mark.parametrize(("thing", "argument"), BUILT, ids=lambda item: type(item).__name__)
def test_pickles(thing: Any, argument: Any, tmp_path: Any) -> None:
    """What was built is built again; what was not, is not."""
    plain = pickle.loads(pickle.dumps(type(thing)()))
    assert not any(name.endswith("_sess_") for name in vars(plain))
    thing = copy.deepcopy(thing)
    thing.build_onnx_function(15, CPU, argument)
    loaded = pickle.loads(pickle.dumps(thing))
    assert repr(loaded) == repr(thing)
    graphs = thing.save_onnx_graph(bytes)
    assert graphs
    assert loaded.save_onnx_graph(bytes) == graphs
    files = thing.save_onnx_graph(tmp_path, prefix="p_")
    assert {name: Path(path).read_bytes() for name, path in files.items()} == graphs
    assert all("Learning" not in path.rsplit("p_")[-1] for path in files.values())
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        thing.save_onnx_graph(tmp_path / "nowhere")
    with pytest.warns(UserWarning, match="exists already; it is replaced"):
        thing.save_onnx_graph(tmp_path, prefix="p_")


def test_the_rate_is_kept_in_a_pickle() -> None:
    rate = LearningRateSGD(0.3)
    rate.init_learning_rate().update_learning_rate(15)
    assert pickle.loads(pickle.dumps(rate)).value == rate.value == 0.15


def test_errors_are_onwards() -> None:
    with pytest.raises(OnwardError):
        BaseLearningRate.select("adam")
    with pytest.raises(NotImplementedError):
        BaseLearningRate().init_learning_rate()

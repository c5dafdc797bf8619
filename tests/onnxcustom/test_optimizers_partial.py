"""`OrtGradientForwardBackwardOptimizer`: what it learns, what it keeps, and what the original did wrong."""

from __future__ import annotations

import copy
import logging
import math
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV

from onward.onnxcustom.training.excs import ConvergenceError, ConvergenceWarning
from onward.onnxcustom.training.optimizers_partial import OrtGradientForwardBackwardOptimizer
from onward.onnxcustom.training.sgd_learning_loss import (
    AbsoluteLearningLoss,
    BaseLearningLoss,
    ElasticLearningLoss,
    NegLogLearningLoss,
    SquareLearningLoss,
)
from onward.onnxcustom.training.sgd_learning_penalty import ElasticLearningPenalty, NoLearningPenalty
from onward.onnxcustom.training.sgd_learning_rate import LearningRateSGD, LearningRateSGDNesterov
from onward.onnxcustom.utils.onnxruntime_helper import numpy_to_ort_value
from onward.runtime.session import open_session
from tests.onnxcustom.models import data, linear, network

Optimizer = OrtGradientForwardBackwardOptimizer
X, Y = data()
TRUE = np.array([1.0, -2.0, 0.5, 0.7])


def fitted(*, seed: int = 0, fit: dict[str, Any] | None = None, **options: Any) -> Optimizer:
    np.random.seed(seed)
    options = {"learning_rate": 0.1, "max_iter": 10} | options
    model = Optimizer(linear(), ["coef", "intercept"], **options)
    return model.fit(X, Y, **(fit or {}))


def numbers(model: Optimizer, kind: str = "weight") -> np.ndarray:
    return np.concatenate([np.array(value.numpy()).ravel() for value in model.get_state(kind)])


# What it learns -----------------------------------------------------------------------------------------------------

RATES: dict[str, Any] = {
    "number": 0.1,
    "integer": 1,
    "optimal": LearningRateSGD(0.1, learning_rate="optimal"),
    "constant": LearningRateSGD(0.1, learning_rate="constant"),
    "momentum": LearningRateSGDNesterov(0.02, nesterov=False),
    "Nesterov": LearningRateSGDNesterov(0.02),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rate", RATES)
def test_a_line_is_found(rate: str, weighted: bool) -> None:
    w = np.random.default_rng(0).random(len(Y)).astype(np.float32) + 1
    rate_object = copy.deepcopy(RATES[rate])
    options = {"learning_rate": 0.9 if rate_object == 1 else rate_object, "max_iter": 40}
    if weighted:
        options |= {"weight_name": "weight", "fit": {"sample_weight": w}}
    model = fitted(**options)
    assert_allclose(numbers(model), TRUE, atol=0.02)
    assert len(model.train_losses_) == 40
    assert model.train_losses_[-1] < model.train_losses_[0] / 100
    assert model.validation_losses_ is None


@pytest.mark.parametrize("loss", ["square_error", "absolute_error", "elastic", ElasticLearningLoss(0.1, 0.9)])
def test_losses_go_down(loss: Any) -> None:
    """The original went up the absolute loss."""
    model = fitted(learning_loss=copy.deepcopy(loss), max_iter=60, learning_rate=0.2)
    assert_allclose(numbers(model), TRUE, atol=0.1)
    assert isinstance(model.learning_loss, type(BaseLearningLoss.select(loss)))


def test_passes_are_those_of_the_formulas() -> None:
    """Every step of a linear model, by hand: gradients of half squares, the penalty first, the mean over rows."""
    rate = LearningRateSGDNesterov(0.05, learning_rate="constant", momentum=0.8)
    penalty = ElasticLearningPenalty(l1=1e-3, l2=1e-3)
    w = np.random.default_rng(3).random(len(Y)).astype(np.float32) + 0.5
    options: dict[str, Any] = {"learning_rate": rate, "learning_penalty": penalty, "weight_name": "weight"}
    model = fitted(max_iter=3, batch_size=25, fit={"sample_weight": w}, **options)

    np.random.seed(0)
    coef, intercept = (np.random.standard_normal(shape).astype(np.float32) for shape in ((3, 1), (1,)))
    weights, velocity = [coef, intercept], [np.zeros((3, 1)), np.zeros(1)]
    losses = []
    for _ in range(3):
        totals = []
        for _ in range(3):
            start = np.random.randint(0, len(Y) - 25 + 1)
            x, y, row = X[start : start + 25], Y[start : start + 25, None], w[start : start + 25, None]
            d = x @ weights[0] + weights[1] - y
            penalised = sum(1e-3 * abs(each).sum() + 1e-3 * (each**2).sum() for each in weights)
            totals.append(((row * d**2).sum() / 2 + penalised) / 25)
            slopes = [x.T @ (row * d), (row * d).sum(axis=0)]
            for index, slope in enumerate(slopes):
                step = -0.05 / 25 * slope
                velocity[index] = 0.8 * velocity[index] + step
                shrunk = (1 - 2e-3) * weights[index] - 1e-3 * np.sign(weights[index])
                weights[index] = shrunk + 0.8 * velocity[index] + step
        losses.append(np.mean(totals))
    assert_allclose(numbers(model), np.concatenate([each.ravel() for each in weights]), rtol=1e-4)
    assert_allclose(numbers(model, "grad"), np.concatenate([each.ravel() for each in velocity]), rtol=1e-3, atol=1e-6)
    assert_allclose(model.train_losses_, losses, rtol=1e-4)


def test_weights_of_rows_count() -> None:
    """Rows that count nothing may say anything."""
    wrong = Y.copy()
    wrong[::2] = 100
    w = np.ones(len(Y), np.float32)
    w[::2] = 0
    np.random.seed(0)
    model = Optimizer(linear(), weight_name="weight", learning_rate=0.2, max_iter=60)
    assert_allclose(numbers(model.fit(X, wrong, w[:, None])), TRUE, atol=0.05)
    with pytest.raises(ValueError, match="weight_name is None"):
        Optimizer(linear(), max_iter=1).fit(X, Y, w)


def test_any_name_of_weights() -> None:
    one = fitted(weight_name="weight", fit={"sample_weight": np.ones(len(Y))})
    other = fitted(weight_name="importance", fit={"sample_weight": np.ones(len(Y))})
    assert_array_equal(numbers(one), numbers(other))


def test_a_batch_that_is_smaller_counts_its_own_rows() -> None:
    """The original divided by the batch size that was asked for."""
    asked, all_rows = (fitted(batch_size=size, max_iter=5) for size in (1000, len(Y)))
    assert_array_equal(numbers(asked), numbers(all_rows))
    assert asked.train_losses_ == all_rows.train_losses_


def test_a_network_and_all_its_weights() -> None:
    np.random.seed(0)
    model = Optimizer(network(), learning_rate=LearningRateSGDNesterov(0.02), max_iter=30).fit(X, Y)
    assert len(model.get_state()) == 4
    assert model.train_losses_[-1] < model.train_losses_[0] / 20


def test_double() -> None:
    np.random.seed(0)
    model = Optimizer(linear("double"), learning_rate=LearningRateSGDNesterov(0.02), max_iter=40)
    model.fit(X, Y)
    assert model.get_state()[0].numpy().dtype == np.float64
    assert_allclose(numbers(model), TRUE, atol=0.02)
    mixed = linear()
    mixed.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(2), "other"))
    with pytest.raises(ValueError, match="the weights to train have several types"):
        Optimizer(mixed)


def test_half() -> None:
    """float16 has three digits: the line is found as well as they allow."""
    np.random.seed(0)
    model = Optimizer(linear("float16"), learning_rate=LearningRateSGDNesterov(0.02), max_iter=40).fit(X, Y)
    assert model.get_state()[0].numpy().dtype == np.float16
    assert_allclose(numbers(model), TRUE, atol=0.1)


def test_scalar_weights_stay_scalars() -> None:
    text = (
        '<ir_version: 8, opset_import: ["" : 15]> g (float[N, 1] X) => (float[N, 1] Y) <float a = {1}, float b = {0}> '
    )
    model = onnx.parser.parse_model(text + "{ p = Mul(X, a) Y = Add(p, b) }")
    np.random.seed(0)
    made = Optimizer(model, learning_rate="Nesterov", max_iter=40, learning_penalty=ElasticLearningPenalty(0, 1e-6))
    made.fit(X[:, :1], 3 * X[:, :1] - 1)
    assert [value.shape() for value in made.get_state()] == [[], []]
    assert_allclose(numbers(made), [3, -1], atol=0.05)
    open_session(made.get_trained_onnx().SerializeToString())


def test_data_of_other_types() -> None:
    """Doubles and integers become what the graph takes."""
    expected = numbers(fitted())
    np.random.seed(0)
    model = Optimizer(linear(), learning_rate=0.1, max_iter=10).fit(X.astype(np.float64), Y.tolist())
    assert_array_equal(numbers(model), expected)
    with pytest.raises(ValueError, match="are no numbers"):
        Optimizer(linear(), max_iter=1).fit(X.astype(str), Y)


def test_several_columns_of_targets() -> None:
    text = '<ir_version: 8, opset_import: ["" : 15]> g (float[N, 3] X) => (float[N, 2] Y) { Y = MatMul(X, w) }'
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((3, 2), np.float32), "w"))
    true = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    np.random.seed(0)
    made = Optimizer(model, learning_rate=0.3, max_iter=60).fit(X, X @ true)
    assert_allclose(made.get_state()[0].numpy(), true, atol=0.05)
    assert made.losses(X, X @ true + 1).shape == (len(X),)
    with pytest.raises(ValueError, match="compares them element by element"):
        Optimizer(model, max_iter=1).fit(X, Y)


def test_a_prediction_that_is_a_vector() -> None:
    """Labels are columns: compared with a vector, each would be compared with each."""
    text = """
        <ir_version: 8, opset_import: ["" : 15]>
        g (float[N, 3] X) => (float[N] Y) <int64[1] axis = {1}> { p = MatMul(X, w) Y = Squeeze(p, axis) }
    """
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((3, 1), np.float32), "w"))
    np.random.seed(0)
    made = Optimizer(model, learning_rate=0.3, max_iter=60).fit(X, X @ TRUE[:3])
    assert_allclose(made.get_state()[0].numpy()[:, 0], TRUE[:3], atol=0.02)


def test_a_prediction_with_more_axes() -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 15]>
        g (float[N, 3] X) => (float[N, 2, 2] Y) <int64[3] shape = {-1, 2, 2}> { p = MatMul(X, w) Y = Reshape(p, shape) }
    """
    model = onnx.parser.parse_model(text)
    true = np.arange(12).reshape(3, 4).astype(np.float32) / 10
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((3, 4), np.float32), "w"))
    np.random.seed(0)
    made = Optimizer(model, learning_rate=0.3, max_iter=60, weight_name="weight")
    made.fit(X, (X @ true).reshape(-1, 2, 2), np.ones(len(X)))
    assert_allclose(made.get_state()[0].numpy(), true, atol=0.02)
    assert_allclose(made.losses(X, (X @ true + 1).reshape(-1, 2, 2)), np.full(len(X), 2.0), rtol=0.1)


def test_diabetes() -> None:
    """As good as least squares, on real data."""
    features, target = load_diabetes(return_X_y=True)
    features = (features / features.std(axis=0)).astype(np.float32)
    target = ((target - target.mean()) / target.std()).astype(np.float32)
    best = LinearRegression().fit(features, target)
    model = linear()
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.zeros((10, 1), np.float32), "coef"))
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 10
    np.random.seed(0)
    rate = LearningRateSGDNesterov(0.05, power_t=0.5)
    made = Optimizer(model, learning_rate=rate, max_iter=60, batch_size=32).fit(features, target)
    expected = ((best.predict(features) - target) ** 2).mean() / 2
    assert -made.score(features, target) < 1.05 * expected


def test_breast_cancer() -> None:
    """A classification by scores, with the log loss."""
    features, labels = load_breast_cancer(return_X_y=True)
    features = ((features - features.mean(axis=0)) / features.std(axis=0)).astype(np.float32)
    np.random.seed(0)
    model = Optimizer(
        network(hidden=8, features=30),
        learning_rate=LearningRateSGDNesterov(0.02),
        learning_loss=NegLogLearningLoss(),
        max_iter=10,
        batch_size=20,
    )
    model.fit(features, labels)
    trained = open_session(model.get_trained_onnx().SerializeToString())
    accuracy = ((trained.run(None, {"X": features})[0][:, 0] > 0) == labels).mean()
    assert accuracy > 0.95


def test_houses() -> None:
    """Eight features of very different kinds and a target that is no line: a network is better than the best line."""
    draw = np.random.default_rng(0)
    income, age = draw.lognormal(1.2, 0.5, 1500), draw.integers(1, 52, 1500)
    rooms, people = draw.lognormal(1.6, 0.3, 1500), draw.lognormal(1.0, 0.4, 1500)
    place = draw.normal(size=(1500, 4))
    price = (
        np.log1p(income) * (1 + 0.3 * np.tanh(place[:, 0]))
        - 0.1 * people / rooms
        + 0.002 * age
        + 0.2 * place[:, 1] ** 2
    )
    price += 0.05 * draw.normal(size=1500)
    features = np.column_stack([income, age, rooms, people, place])
    features = ((features - features.mean(axis=0)) / features.std(axis=0)).astype(np.float32)
    target = ((price - price.mean()) / price.std()).astype(np.float32)
    line = LinearRegression().fit(features[:1000], target[:1000])
    np.random.seed(0)
    rate = LearningRateSGDNesterov(0.02, power_t=0.4)
    made = Optimizer(network(hidden=24, features=8), learning_rate=rate, max_iter=12, batch_size=20)
    made.fit(features[:1000], target[:1000])
    residual = ((line.predict(features[1000:]) - target[1000:]) ** 2).mean() / 2
    assert -made.score(features[1000:], target[1000:]) < 0.75 * residual


def test_labels_of_the_log_loss_are_0_and_1() -> None:
    model = Optimizer(linear(), learning_loss="log", max_iter=1)
    with pytest.raises(ValueError, match="takes labels 0 and 1, and there is -1"):
        model.fit(X, np.sign(Y))
    assert len(model.fit(X, Y > 0).train_losses_) == 1


@pytest.mark.parametrize(("opset", "domain"), [(8, ""), (11, "ai.onnx"), (18, "")])
def test_any_opset(opset: int, domain: str) -> None:
    graph = linear()
    graph.opset_import[0].CopyFrom(onnx.helper.make_opsetid(domain, opset))
    np.random.seed(0)
    options: dict[str, Any] = {"learning_loss": "absolute", "learning_penalty": ElasticLearningPenalty(1e-7, 0)}
    made = Optimizer(graph, max_iter=30, learning_rate="Nesterov", **options).fit(X, Y)
    assert made.train_losses_[-1] < made.train_losses_[0] / 10


def test_running_statistics_are_in_the_trained_graph() -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 15]>
        norm (float[N, 3] X) => (float[N, 1] Y)
        <float[3] b_scale = {1, 1, 1}, float[3] c_bias = {0, 0, 0}, float[3] mean = {0, 0, 0}, float[3] var = {1, 1, 1}>
        { h, m, v = BatchNormalization<training_mode = 1>(X, b_scale, c_bias, mean, var) Y = MatMul(h, d) }
    """
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((3, 1), np.float32), "d"))
    names = ["b_scale", "c_bias", "d"]
    np.random.seed(0)
    made = Optimizer(model, names, max_iter=10, learning_rate=0.05).fit(X + 3, Y)
    trained = {each.name: onnx.numpy_helper.to_array(each) for each in made.get_trained_onnx().graph.initializer}
    assert_allclose(trained["mean"], (X + 3).mean(axis=0), atol=0.3)
    loaded = pickle.loads(pickle.dumps(made))
    assert loaded.score(X + 3, Y) == made.score(X + 3, Y)


# Scores -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [7, 60, 1000])
def test_losses_are_in_the_order_of_rows(batch_size: int) -> None:
    model = fitted(batch_size=batch_size, weight_name="weight")
    coef = numbers(model)
    expected = ((X @ coef[:3] + coef[3] - Y) ** 2) / 2
    losses = model.losses(X, Y)
    assert_allclose(losses, expected, rtol=1e-3, atol=1e-6)
    assert_allclose(model.score(X, Y), -expected.mean(), rtol=1e-4)
    w = np.arange(len(Y)).astype(np.float32)
    assert_allclose(model.losses(X, Y, w), expected * w, rtol=1e-3, atol=1e-5)


def test_losses_add_up_to_that_of_training() -> None:
    model = fitted(batch_size=0, max_iter=1, learning_rate=LearningRateSGD(1e-30))
    assert_allclose(-model.score(X, Y), model.train_losses_[0], rtol=1e-5)


# Validation ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "passes", "count"), [(0.1, 10, 10), (0.1, 3, 3), (0.5, 10, 2), (3, 10, 3), (4.0, 10, 2), (20, 10, 0)]
)
def test_validation(every: float, passes: int, count: int) -> None:
    options: dict[str, Any] = {"validation_every": every, "max_iter": passes}
    model = fitted(fit={"X_val": X[:9], "y_val": Y[:9]}, **options)
    assert model.validation_losses_ is not None
    assert len(model.validation_losses_) == count
    if passes % model.validation_every == 0:
        coef = numbers(model)
        expected = ((X[:9] @ coef[:3] + coef[3] - Y[:9]) ** 2).mean() / 2
        assert_allclose(model.validation_losses_[-1], expected, rtol=1e-3, atol=1e-7)
    assert_array_equal(numbers(model), numbers(fitted(**options)), "looking changes nothing")


def test_validation_needs_targets_and_passes() -> None:
    with pytest.raises(ValueError, match="validation_every must be above 0"):
        Optimizer(linear(), validation_every=0)
    with pytest.raises(ValueError, match="y or y_val is None"):
        fitted(fit={"X_val": X})


# Failure ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_divergence_is_an_error(weighted: bool) -> None:
    model = Optimizer(linear(), learning_rate=1e10, weight_name="weight")
    w = np.ones(len(Y)) if weighted else None
    with pytest.raises(ConvergenceError, match=r"gradient descent has failed: learning_rate=LearningRateSGD\(eta0=1"):
        model.fit(X, Y, w)
    assert len(model.train_losses_) < 2
    assert all(map(math.isfinite, model.train_losses_))
    assert len(model.get_state()) == 2


def test_divergence_can_be_a_warning() -> None:
    np.random.seed(0)
    model = Optimizer(linear(), learning_rate=1e10, max_iter=4, exc=False)
    with pytest.warns(ConvergenceWarning, match="gradient descent has failed"):
        model.fit(X, Y)
    assert len(model.train_losses_) == 4
    assert math.isnan(model.train_losses_[-1])


def test_scores_do_not_overflow_where_probabilities_are_clipped() -> None:
    np.random.seed(0)
    options: dict[str, Any] = {"learning_rate": 1e10, "learning_loss": "log", "max_iter": 5}
    model = Optimizer(linear(), **options).fit(X, (Y > 0).astype(np.int64))
    assert all(map(math.isfinite, model.train_losses_))


def test_other_optimizers_are_not_known() -> None:
    with pytest.raises(NotImplementedError, match="only SGDOptimizer is known, not 'AdamOptimizer'"):
        fitted(training_optimizer_name="AdamOptimizer")


def test_names_are_checked_by_fit() -> None:
    for names, message in ((["A"], "there is no initializer 'A'"), (["intercept", "coef"], "alphabetical order")):
        model = Optimizer(linear(), names)
        with pytest.raises(ValueError, match=message):
            model.fit(X, Y)


def test_graphs_with_more_inputs_are_refused() -> None:
    text = '<ir_version: 8, opset_import: ["" : 15]> g (float[N] A, float[N] B) => (float[N] Y) <float[1] w = {1}> '
    model = onnx.parser.parse_model(text + "{ p = Mul(A, w) Y = Add(p, B) }")
    with pytest.raises(ValueError, match=r"feeds one input, the features; the graph has \['A', 'B'\]"):
        Optimizer(model).fit(X, Y)


# State --------------------------------------------------------------------------------------------------------------


def test_there_is_no_state_before_fit() -> None:
    model = Optimizer(linear())
    for call in (model.get_state, model.get_full_state, model.get_trained_onnx, lambda: model.set_state([])):
        with pytest.raises(AttributeError, match="call fit first"):
            call()
    assert not hasattr(model, "trained_coef_")


def test_state() -> None:
    model = fitted(learning_rate="Nesterov")
    state = model.get_state()
    assert isinstance(state, list)
    assert [value.shape() for value in state] == [[3, 1], [1]]
    assert [value.shape() for value in model.get_state("grad")] == [[3, 1], [1]]
    assert list(model.trained_coef_) == ["coef", "intercept"]
    full, velocities = model.get_full_state(["weight", "grad"])
    assert len(full) == len(velocities) == 3
    arrays = [np.array(value.numpy()) for value in state]
    for same in (full, state, arrays, [None, *arrays], [numpy_to_ort_value(array) for array in arrays]):
        model.set_state(same)
        assert_array_equal(numbers(model), np.concatenate([array.ravel() for array in arrays]))
        assert model.get_full_state()[0] is None
        assert math.isfinite(model.score(X, Y))
    model.set_state([array.astype(np.float64) for array in arrays])
    assert model.get_state()[0].numpy().dtype == np.float32
    model.set_state(arrays, zero=True)
    assert not numbers(model).any()
    with pytest.raises(TypeError, match="the state of 'intercept' is str"):
        model.set_state([arrays[0], "b"])
    with pytest.raises(ValueError, match="there are 2 weights; given were 1"):
        model.set_state(arrays[:1])
    with pytest.raises(ValueError, match=r"the state of 'coef' has shape \[1, 3\], and the weight \[3, 1\]"):
        model.set_state([arrays[0].T, arrays[1]])
    for call in (model.get_state, model.get_full_state, lambda kind: model.set_state(arrays, kind=kind)):
        with pytest.raises(ValueError, match="kind='other' is not known"):
            call("other")


def test_trained_graphs() -> None:
    model = fitted(max_iter=40)
    trained = model.get_trained_onnx()
    predicted = open_session(trained.SerializeToString()).run(None, {"X": X})[0][:, 0]
    assert_allclose(predicted, Y, atol=0.1)
    assert model.get_trained_onnx(linear()) == trained
    with pytest.raises(RuntimeError, match="unable to find initializer"):
        model.get_trained_onnx(network())


def test_what_was_given_is_not_changed() -> None:
    model = linear()
    before = model.SerializeToString()
    Optimizer(model, max_iter=2).fit(X, Y)
    assert model.SerializeToString() == before


# Continuing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("kind", [LearningRateSGD, LearningRateSGDNesterov])
def test_a_warm_start_continues(kind: type[LearningRateSGD], saved: bool) -> None:
    """5 passes and 5 more are 10, to the bit: weights and velocities go on, pickled in between or not."""
    rate = kind(0.02, learning_rate="constant")
    options: dict[str, Any] = {"warm_start": True, "learning_rate": rate}
    whole = fitted(max_iter=10, **copy.deepcopy(options))
    half = fitted(max_iter=5, **copy.deepcopy(options))
    if saved:
        half = pickle.loads(pickle.dumps(half))
    first = half.train_losses_
    half.fit(X, Y)
    assert_array_equal(numbers(half), numbers(whole))
    assert first + half.train_losses_ == whole.train_losses_


def test_a_warm_start_begins_with_the_graph() -> None:
    model = fitted(warm_start=True, learning_rate=1e-30, max_iter=1)
    assert_allclose(numbers(model), [0.1, 0.2, 0.3, 0.5], rtol=1e-6)


def test_a_cold_start_draws_weights() -> None:
    model = fitted(learning_rate=1e-30, max_iter=1)
    np.random.seed(0)
    assert_allclose(numbers(model), np.random.randn(4), rtol=1e-6)
    model.fit(X, Y)
    assert not np.allclose(numbers(model)[0], 1.764, atol=1e-3), "each fit draws anew"


def test_velocities_start_at_zero() -> None:
    model = fitted(learning_rate="Nesterov", max_iter=3)
    first = numbers(model)
    np.random.seed(0)
    assert_array_equal(numbers(model.fit(X, Y)), first)


def test_pickles() -> None:
    new = pickle.loads(pickle.dumps(Optimizer(linear(), learning_rate="Nesterov", max_iter=3)))
    with pytest.raises(AttributeError, match="call fit first"):
        new.get_state()
    np.random.seed(0)
    new.fit(X, Y)
    loaded = pickle.loads(pickle.dumps(new))
    assert not hasattr(loaded, "train_session_")
    for kind in ("weight", "grad"):
        assert_array_equal(numbers(loaded, kind), numbers(new, kind))
    assert (numbers(new) != numbers(new, "grad")).any(), "velocities are saved as such"
    assert loaded.train_losses_ == new.train_losses_
    assert loaded.score(X, Y) == new.score(X, Y)
    assert loaded.get_trained_onnx() == new.get_trained_onnx()
    assert repr(loaded) == repr(new)


# Parameters ---------------------------------------------------------------------------------------------------------


def test_repr() -> None:
    model = fitted()
    assert repr(model).startswith("OrtGradientForwardBackwardOptimizer(model_onnx='")
    assert "learning_rate='invscaling'" in repr(model)
    assert "device='cpu'" in repr(model)
    assert "learning_loss=SquareLearningLoss()" in repr(model)


def test_parameters() -> None:
    model = Optimizer(linear(), learning_penalty="elastic")
    params = model.get_params()
    assert params["device"] == "cpu"
    assert list(params) == [name for name, _ in Optimizer._get_param_names()]
    assert isinstance(params["learning_loss"], SquareLearningLoss)
    assert model.set_params(learning_rate=0.5, learning_loss="absolute", learning_penalty=None, max_iter=3) is model
    assert isinstance(model.learning_rate, LearningRateSGD)
    assert model.learning_rate.eta0 == 0.5
    assert isinstance(model.learning_loss, AbsoluteLearningLoss)
    assert isinstance(model.learning_penalty, NoLearningPenalty)
    assert len(model.fit(X, Y).train_losses_) == 3
    with pytest.raises(ValueError, match="has no parameter 'lr'; it has model_onnx"):
        model.set_params(lr=1)


def test_clones() -> None:
    model = fitted()
    copied = clone(model)
    assert repr(copied).partition("value=")[0] == repr(model).partition("value=")[0]
    assert not hasattr(copied, "train_state_")


@pytest.mark.parametrize("values", [[1e-6, 0.05, 0.3], [LearningRateSGD(1e-6), LearningRateSGD(0.3)]])
def test_grid_search(values: list[Any]) -> None:
    np.random.seed(0)
    search = GridSearchCV(Optimizer(linear(), max_iter=10), {"learning_rate": values}, cv=3, error_score="raise")
    search.fit(X, Y)
    assert repr(search.best_params_["learning_rate"]).partition(",")[0] == repr(values[-1]).partition(",")[0]
    scores = search.cv_results_["mean_test_score"]
    assert scores[-1] == max(scores) > -0.01
    assert scores[0] == min(scores)


def test_grid_search_over_rates_that_fail() -> None:
    np.random.seed(0)
    model = Optimizer(linear(), max_iter=5, exc=False)
    search = GridSearchCV(model, {"learning_rate": [0.1, 1e12]}, cv=2)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        search.fit(X, Y)
    assert ConvergenceWarning in [each.category for each in warned]
    assert search.best_params_ == {"learning_rate": 0.1}


# Graphs and logs ----------------------------------------------------------------------------------------------------


def test_saved_graphs(tmp_path: Path) -> None:
    penalty = ElasticLearningPenalty(l1=0, l2=1e-4)
    model = Optimizer(linear(), learning_rate="Nesterov", learning_penalty=penalty, max_iter=2)
    saved, content = model.save_onnx_graph(tmp_path), model.save_onnx_graph(bytes)
    assert (
        set(saved)
        == set(content)
        == {
            "model_onnx",
            "learning_rate",
            "learning_loss",
            "learning_penalty",
            "zero_onnx_",
        }
    )
    assert set(content["learning_penalty"]) == {"penalty_onnx_", "penalty_grad_onnx_"}
    for graph in content["learning_penalty"].values():
        constants = [list(each.float_data) for each in onnx.load_model_from_string(graph).graph.initializer]
        assert constants.count([0.0]) == 1
    assert Path(saved["learning_loss"]["loss_grad_onnx_"]).name == "SquareLLoss.learning_loss.loss_grad_onnx_.onnx"
    assert Path(saved["zero_onnx_"]).name == "GradFBOptimizer.zero_onnx_.onnx"
    assert "train_function_" in model.fit(X, Y).save_onnx_graph(bytes)


def test_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "onnxcustom"):
        fitted(max_iter=1)
        assert not caplog.text
        fitted(max_iter=1, enable_logging=True)
    assert "[OrtGradientForwardBackwardOptimizer._iteration]" in caplog.text
    assert "[OrtGradientForwardBackwardOptimizer.fit] weights_to_train=['coef', 'intercept']" in caplog.text


def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    fitted(max_iter=2, verbose=2)
    shown = capsys.readouterr().err
    assert "2/2" in shown
    assert "loss=" in shown
    assert "lr=" in shown


def test_interruption_leaves_weights() -> None:
    """Data that raises in the middle: what was learned before is there."""
    model = Optimizer(linear(), max_iter=5, learning_rate=0.1)
    calls = 0
    learn = model.learning_loss.loss_gradient

    def fails(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 8:
            raise KeyboardInterrupt
        return learn(*args)

    model.learning_loss.loss_gradient = fails  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y)
    assert len(model.train_losses_) == 1
    assert np.isfinite(numbers(model)).all()

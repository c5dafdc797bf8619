"""Loss curves of scikit-learn's MLP, from the same weights, batches and optimizer; and of torch, with weights."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neural_network import MLPClassifier, MLPRegressor

from onward.sklearn import OnnxClassifier, OnnxRegressor
from tests.sklearn_front.data import diabetes, digits, iris, quiet, three_targets

COMMON: dict[str, Any] = {"hidden_layer_sizes": (16, 8), "max_iter": 12, "random_state": 3, "batch_size": 64}
SGD: dict[str, Any] = {"solver": "sgd", "learning_rate_init": 0.05}
SOLVERS: dict[str, dict[str, Any]] = {
    "adam": {},
    "nesterov": SGD,
    "momentum": {**SGD, "nesterovs_momentum": False, "momentum": 0.7},
    "plain": {**SGD, "momentum": 0.0, "shuffle": False},
    "invscaling": {**SGD, "learning_rate": "invscaling", "learning_rate_init": 0.5},
    "adaptive": {**SGD, "learning_rate": "adaptive", "tol": 0.05, "n_iter_no_change": 1},
    "early stopping": {"early_stopping": True, "learning_rate_init": 0.01},
    "penalty": {"alpha": 0.5, "batch_size": "auto"},
}
ACTIVATIONS = ["relu", "tanh", "logistic", "identity"]


def targets(kind: str) -> tuple[np.ndarray, np.ndarray]:
    X, y = digits()  # noqa: N806
    return {
        "binary": (X, np.array(["few", "many"])[(y > 4).astype(int)]),
        "multiclass": (X, y),
        "multilabel": (X, np.stack([y > 4, y % 2 == 0, y == 3], 1).astype(int)),
        "one target": diabetes(),
        "three targets": three_targets(),
    }[kind]


CLASSES = ["binary", "multiclass", "multilabel"]
NUMBERS = ["one target", "three targets"]


def check(kind: str, X: np.ndarray, y: np.ndarray, weight: np.ndarray | None = None, **options: Any) -> None:  # noqa: N803
    theirs, ours = (MLPClassifier, OnnxClassifier) if kind in CLASSES else (MLPRegressor, OnnxRegressor)
    settings = {**COMMON, **options}
    weights = {} if weight is None else {"sample_weight": weight}
    expected, got = quiet(theirs(**settings), X, y, **weights), quiet(ours(**settings), X, y, **weights)
    narrow = X.dtype == np.float32
    tolerance = 1e-4 if narrow else 2e-6  # the learning rate is a float
    np.testing.assert_allclose(got.loss_curve_, expected.loss_curve_, rtol=tolerance)
    assert (got.n_iter_, got.t_) == (expected.n_iter_, expected.t_)
    for a, b in zip(got.coefs_ + got.intercepts_, expected.coefs_ + expected.intercepts_, strict=True):
        assert a.dtype == b.dtype == X.dtype
        np.testing.assert_allclose(a, b, rtol=tolerance * 10, atol=2e-3 if narrow else 1e-5)
    if options.get("early_stopping"):
        np.testing.assert_allclose(got.validation_scores_, expected.validation_scores_, rtol=tolerance)
        assert (got.best_loss_, got.best_validation_score_ is None) == (None, False)
    else:
        np.testing.assert_allclose(got.best_loss_, expected.best_loss_, rtol=tolerance)
    if kind in CLASSES:
        np.testing.assert_array_equal(got.predict(X), expected.predict(X))
    if kind in CLASSES and not narrow:
        np.testing.assert_allclose(got.predict_proba(X), expected.predict_proba(X), atol=1e-5)
        np.testing.assert_array_equal(got.classes_, expected.classes_)


@pytest.mark.parametrize("kind", CLASSES + NUMBERS)
@pytest.mark.parametrize("solver", ["adam", "nesterov"])
def test_curves(kind: str, solver: str) -> None:
    check(kind, *targets(kind), **SOLVERS[solver])


@pytest.mark.parametrize("solver", [name for name in SOLVERS if name not in ("adam", "nesterov")])
def test_solvers(solver: str) -> None:
    check("binary", *targets("binary"), **SOLVERS[solver])


@pytest.mark.parametrize("activation", ACTIVATIONS[1:])
def test_activations(activation: str) -> None:
    check("multiclass", *iris(), activation=activation)


@pytest.mark.parametrize("kind", ["multiclass", "three targets"])
def test_weights_of_rows(kind: str) -> None:
    X, y = targets(kind)  # noqa: N806
    check(kind, X, y, np.random.default_rng(0).uniform(0, 2, len(X)), alpha=0.1)


@pytest.mark.parametrize("kind", ["binary", "one target"])
def test_float32(kind: str) -> None:
    X, y = targets(kind)  # noqa: N806
    check(kind, X.astype(np.float32), y)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CLASSES + NUMBERS)
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_all(kind: str, solver: str, activation: str) -> None:
    X, y = targets(kind)  # noqa: N806
    weight = np.random.default_rng(0).uniform(0, 2, len(X)) if activation == "tanh" else None
    options = dict(SOLVERS[solver])
    if options.get("solver") == "sgd":
        # At rates where training does not settle, rounding grows in every program.
        options["learning_rate_init"] *= 0.1
    check(kind, X, y, weight, activation=activation, **options)


def torch_losses(X: np.ndarray, y: np.ndarray, estimator: Any, loss: Any, steps: int) -> list[float]:  # noqa: N803
    """Gradient descent on all rows, from the first weights of an estimator."""
    sizes = [X.shape[1], *COMMON["hidden_layer_sizes"], int(y.max()) + 1]
    random = np.random.RandomState(COMMON["random_state"])
    parameters = []
    for inputs, outputs in itertools.pairwise(sizes):
        bound = np.sqrt(6 / (inputs + outputs))
        for size in ((inputs, outputs), outputs):
            parameters.append(torch.tensor(random.uniform(-bound, bound, size), requires_grad=True))
    optimizer = torch.optim.SGD(parameters, lr=estimator.learning_rate_init)
    losses = []
    for _ in range(steps):
        x = torch.tensor(X)
        for index in range(0, len(parameters), 2):
            x = x @ parameters[index] + parameters[index + 1]
            x = x if index == len(parameters) - 2 else x.relu()
        value = loss(x, torch.tensor(y))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))
    return losses


def test_class_weights_as_in_torch() -> None:
    """The mean of torch's cross entropy with a weight for each class, which divides by the weights that count."""
    X, y = iris()  # noqa: N806
    weights = {0: 0.5, 1: 3.0, 2: 1.0}
    options = {**COMMON, "solver": "sgd", "momentum": 0.0, "learning_rate_init": 0.1, "alpha": 0, "batch_size": len(X)}
    estimator = quiet(OnnxClassifier(**options, class_weight=weights), X, y)
    loss = torch.nn.CrossEntropyLoss(torch.tensor(list(weights.values()), dtype=torch.float64))
    np.testing.assert_allclose(estimator.loss_curve_, torch_losses(X, y, estimator, loss, 12), rtol=1e-5)
    by_row = quiet(OnnxClassifier(**options), X, y, np.array(list(weights.values()))[y])
    np.testing.assert_allclose(by_row.loss_curve_, estimator.loss_curve_, rtol=1e-12)
    balanced = quiet(OnnxClassifier(**{**options, "batch_size": 120}, class_weight="balanced"), X[:120], y[:120])
    counts = np.bincount(y[:120])
    loss = torch.nn.CrossEntropyLoss(torch.tensor(120 / (3 * counts)))
    np.testing.assert_allclose(balanced.loss_curve_, torch_losses(X[:120], y[:120], balanced, loss, 12), rtol=1e-5)


def test_both_kinds_of_weights_multiply() -> None:
    X, y = iris()  # noqa: N806
    weight = np.random.default_rng(0).uniform(0, 2, len(X))
    both = quiet(OnnxClassifier(**COMMON, class_weight={0: 0.5, 1: 3.0, 2: 1.0}), X, y, weight)
    one = quiet(OnnxClassifier(**COMMON), X, y, weight * np.array([0.5, 3.0, 1.0])[y])
    np.testing.assert_array_equal(both.loss_curve_, one.loss_curve_)

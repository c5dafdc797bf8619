"""`OrtGradientOptimizer`: the loss in the graph, a TrainingSession underneath."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from onward.onnxcustom.training.excs import ConvergenceError, EvaluationError
from onward.onnxcustom.training.optimizers import OrtGradientOptimizer
from onward.onnxcustom.training.sgd_learning_rate import LearningRateSGD
from onward.onnxcustom.utils.orttraining_helper import add_loss_output
from onward.runtime.session import open_session
from onward.session.training_session import TrainingSession
from tests.onnxcustom.models import data, linear, network

X, Y = data()
TRUE = np.array([1.0, -2.0, 0.5, 0.7])
NAMES = ["intercept", "coef"]


def fitted(
    model: onnx.ModelProto | None = None, *, seed: int = 0, fit: dict[str, Any] | None = None, **options: Any
) -> OrtGradientOptimizer:
    np.random.seed(seed)
    options = {"learning_rate": 0.1, "max_iter": 10} | options
    made = OrtGradientOptimizer(add_loss_output(linear()) if model is None else model, NAMES, **options)
    return made.fit(X, Y, **(fit or {}))


def numbers(model: OrtGradientOptimizer) -> np.ndarray:
    state = model.get_state()
    return np.concatenate([state[name].ravel() for name in ("coef", "intercept")])


@pytest.mark.parametrize("use_numpy", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("score", ["squared_error", "absolute_error", "elastic"])
def test_a_line_is_found(score: str, weighted: bool, use_numpy: bool) -> None:
    model = add_loss_output(linear(), score, weight_name="weight" if weighted else None)
    fit = {"sample_weight": np.random.default_rng(0).random(len(Y)) + 1} if weighted else {}
    made = fitted(model, max_iter=40, fit=fit | {"use_numpy": use_numpy})
    assert_allclose(numbers(made), TRUE, atol=0.05)
    assert made.train_losses_[-1] < made.train_losses_[0] / 10
    assert made.validation_losses_ == []
    assert made.input_names_ == ["X", "label", *(["weight"] if weighted else []), "Learning_Rate"]
    assert made.output_names_[:2] == ["loss", "variable"]
    assert made.loss_index_ == 0
    assert isinstance(made.train_session_, TrainingSession)
    assert set(made.trained_coef_) == set(NAMES)


def test_passes_are_those_of_the_formulas() -> None:
    """Every step by hand: the gradient of a sum of squares, and the rate divided by the rows."""
    rate = LearningRateSGD(0.05)
    made = fitted(max_iter=3, batch_size=25, learning_rate=rate)
    np.random.seed(0)
    coef, intercept = (np.random.standard_normal(shape).astype(np.float32) for shape in ((3, 1), (1,)))
    losses = []
    for eta in (0.05, 0.05, 0.05 / 2**0.25):
        totals = []
        for _ in range(3):
            start = np.random.randint(0, len(Y) - 25 + 1)
            x, y = X[start : start + 25], Y[start : start + 25, None]
            d = x @ coef + intercept - y
            totals.append((d**2).sum() / 25)
            coef = coef - eta / 25 * 2 * x.T @ d
            intercept = intercept - eta / 25 * 2 * d.sum(axis=0)
        losses.append(np.mean(totals))
    assert_allclose(numbers(made), np.concatenate([coef.ravel(), intercept]), rtol=1e-4)
    assert_allclose(made.train_losses_, losses, rtol=1e-4)


def test_both_ways_of_giving_data_are_the_same() -> None:
    assert_array_equal(numbers(fitted()), numbers(fitted(fit={"use_numpy": True})))


def test_weights_of_rows_count() -> None:
    """The original's weighted loss was the sum of losses times the sum of weights."""
    wrong = Y.copy()
    wrong[::2] = 100
    w = np.ones(len(Y), np.float32)
    w[::2] = 0
    np.random.seed(0)
    model = add_loss_output(linear(), weight_name="weight")
    made = OrtGradientOptimizer(model, NAMES, learning_rate=0.1, max_iter=60).fit(X, wrong, w[:, None])
    assert_allclose(numbers(made), TRUE, atol=0.05)


def test_names_of_the_loss_and_of_weights() -> None:
    """The original knew only 'loss'."""
    named = add_loss_output(linear(), loss_name="cost", weight_name="importance", label_name="target")
    made = fitted(named, loss_output_name="cost", fit={"sample_weight": np.ones(len(Y))})
    assert_array_equal(numbers(made), numbers(fitted()))
    assert made.loss_index_ == 0


def test_weights_and_inputs_must_match() -> None:
    with pytest.raises(RuntimeError, match=r"takes \['X', 'label'\], and rows have weights"):
        fitted(fit={"sample_weight": np.ones(len(Y))})
    with pytest.raises(RuntimeError, match="and rows have no weights"):
        fitted(add_loss_output(linear(), weight_name="weight"))


def test_penalties_shrink() -> None:
    free, bound = (fitted(add_loss_output(linear(), penalty=p), max_iter=40) for p in (None, {"coef": 20.0}))
    assert abs(numbers(bound)[:3]).sum() < 0.7 * abs(numbers(free)[:3]).sum()


@pytest.mark.parametrize("weighted", [False, True])
def test_a_classification(weighted: bool) -> None:
    """Real data, probabilities and the log loss; reported losses are means, though the graph's is one already."""
    from skl2onnx import to_onnx

    features, labels = load_breast_cancer(return_X_y=True)
    features = ((features - features.mean(axis=0)) / features.std(axis=0)).astype(np.float32)
    model = to_onnx(
        LogisticRegression(max_iter=5, tol=10).fit(features, labels),
        features,
        black_op={"LinearClassifier"},
        options={"zipmap": False},
        target_opset=15,
    )
    lossy = add_loss_output(model, "log", output_index=1, weight_name="weight" if weighted else None)
    np.random.seed(0)
    # From the weights of the graph, which are almost 0: the rate is divided by the rows, and so is the loss.
    made = OrtGradientOptimizer(lossy, NAMES, learning_rate=1.0, max_iter=20, warm_start=True)
    weights = (np.ones(len(labels)),) if weighted else ()
    made.fit(features, labels[:, None], *weights, X_val=features, y_val=labels)
    trained = open_session(made.get_trained_onnx(model).SerializeToString())
    predicted, probabilities = trained.run(None, {"X": features})
    assert (predicted == labels).mean() > 0.9
    # Probabilities are clipped to 1e-6 in the graph.
    assert_allclose(made.validation_losses_[-1], log_loss(labels, np.clip(probabilities, 1e-6, 1)), rtol=1e-2)
    assert 0.3 < made.train_losses_[-1] / made.validation_losses_[-1] < 3
    with pytest.raises(ValueError, match="takes labels 0 and 1, and there is 2"):
        made.fit(features, labels + 1, *weights)


def test_labels_as_a_vector() -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 15]>
        g (float[N, 3] X) => (float[N] Y) <int64[1] axis = {1}> { p = MatMul(X, w) Y = Squeeze(p, axis) }
    """
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((3, 1), np.float32), "w"))
    np.random.seed(0)
    made = OrtGradientOptimizer(add_loss_output(model), ["w"], learning_rate=0.2, max_iter=60)
    made.fit(X, X @ TRUE[:3])
    assert_allclose(made.get_state()["w"][:, 0], TRUE[:3], atol=0.02)


@pytest.mark.parametrize(("kind", "dtype"), [("double", np.float64), ("float16", np.float16)])
def test_other_types(kind: str, dtype: type) -> None:
    np.random.seed(0)
    made = OrtGradientOptimizer(add_loss_output(linear(kind)), NAMES, learning_rate=0.1, max_iter=10)
    made.fit(X.astype(np.float16), Y.tolist())
    assert made.get_state()["coef"].dtype == dtype
    assert made.train_losses_[-1] < made.train_losses_[0] / 20


def test_a_network() -> None:
    np.random.seed(0)
    names = ["I0_A", "I1_a", "I2_B", "I3_b"]
    made = OrtGradientOptimizer(add_loss_output(network()), names, learning_rate=0.02, max_iter=40).fit(X, Y)
    assert made.train_losses_[-1] < made.train_losses_[0] / 10


def test_a_batch_that_is_smaller_counts_its_own_rows() -> None:
    asked, all_rows = (fitted(batch_size=size, max_iter=5) for size in (1000, len(Y)))
    assert_array_equal(numbers(asked), numbers(all_rows))


# Validation ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("every", "passes", "count"), [(0.1, 10, 10), (0.1, 3, 3), (0.5, 10, 2), (3, 10, 3)])
def test_validation(every: float, passes: int, count: int, weighted: bool) -> None:
    model = add_loss_output(linear(), weight_name="weight" if weighted else None)
    fit: dict[str, Any] = {"sample_weight": np.full(len(Y), 2.0)} if weighted else {}
    options: dict[str, Any] = {"validation_every": every, "max_iter": passes, "model": model}
    made = fitted(fit=fit | {"X_val": X[:9], "y_val": Y[:9]}, **options)
    assert len(made.validation_losses_) == count
    if passes % made.validation_every == 0:
        coef = numbers(made)
        expected = ((X[:9] @ coef[:3] + coef[3] - Y[:9]) ** 2).mean()
        assert_allclose(made.validation_losses_[-1], expected, rtol=1e-3, atol=1e-7)
    assert_array_equal(numbers(made), numbers(fitted(fit=fit, **options)), "looking changes nothing")


def test_validation_that_fails() -> None:
    with pytest.raises(EvaluationError, match="the loss of the validation set is"):
        fitted(fit={"X_val": np.full((2, 3), np.inf), "y_val": np.zeros(2)})
    with pytest.raises(ValueError, match="y or y_val is None"):
        fitted(fit={"X_val": X})


# Failure ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_numpy", [False, True])
def test_divergence_is_an_error(use_numpy: bool) -> None:
    made = OrtGradientOptimizer(add_loss_output(linear()), NAMES, learning_rate=1e9)
    with pytest.raises(ConvergenceError, match=r"gradient descent has failed: learning_rate=.*past losses="):
        made.fit(X, Y, use_numpy=use_numpy)
    assert all(map(math.isfinite, made.train_losses_))
    assert len(made.get_state()) == 2


def test_what_is_not_known() -> None:
    with pytest.raises(NotImplementedError, match="use OrtGradientForwardBackwardOptimizer"):
        OrtGradientOptimizer(add_loss_output(linear()), NAMES, learning_rate="Nesterov")
    with pytest.raises(NotImplementedError, match="only SGDOptimizer is known, not 'AdamOptimizer'"):
        fitted(training_optimizer_name="AdamOptimizer")
    made = OrtGradientOptimizer(add_loss_output(linear()), ["A"])
    with pytest.raises(RuntimeError, match="'A'"):
        made.fit(X, Y)


# State --------------------------------------------------------------------------------------------------------------


def test_there_is_no_state_before_fit() -> None:
    made = OrtGradientOptimizer(add_loss_output(linear()), NAMES)
    for call in (made.get_state, made.get_trained_onnx, lambda: made.set_state({})):
        with pytest.raises(AttributeError, match="call fit first"):
            call()


def test_state_and_trained_graphs() -> None:
    made = fitted(max_iter=40)
    state = made.get_state()
    assert isinstance(state, dict)
    made.set_state({name: 0 * array for name, array in state.items()})
    assert not numbers(made).any()
    made.set_state(state)
    trained = made.get_trained_onnx(linear())
    assert_allclose(open_session(trained.SerializeToString()).run(None, {"X": X})[0][:, 0], Y, atol=0.1)
    assert [output.name for output in made.get_trained_onnx().graph.output] == ["loss", "variable"]
    with pytest.raises(RuntimeError, match="unable to find initializer"):
        made.get_trained_onnx(network())


@pytest.mark.parametrize("saved", [False, True])
def test_a_warm_start_continues(saved: bool) -> None:
    rate = LearningRateSGD(0.05, learning_rate="constant")
    whole = fitted(max_iter=10, warm_start=True, learning_rate=rate)
    half = fitted(max_iter=5, warm_start=True, learning_rate=rate)
    if saved:
        half = pickle.loads(pickle.dumps(half))
    first = half.train_losses_
    half.fit(X, Y)
    assert_array_equal(numbers(half), numbers(whole))
    assert first + half.train_losses_ == whole.train_losses_


def test_a_warm_start_begins_with_the_graph() -> None:
    assert_allclose(numbers(fitted(warm_start=True, learning_rate=1e-30, max_iter=1)), [0.1, 0.2, 0.3, 0.5], rtol=1e-6)


def test_pickles() -> None:
    new = pickle.loads(pickle.dumps(OrtGradientOptimizer(add_loss_output(linear()), NAMES, max_iter=3)))
    with pytest.raises(AttributeError, match="call fit first"):
        new.get_state()
    new.fit(X, Y)
    loaded = pickle.loads(pickle.dumps(new))
    assert not hasattr(loaded, "train_session_")
    assert_array_equal(numbers(loaded), numbers(new))
    assert loaded.get_trained_onnx(linear()) == new.get_trained_onnx(linear())
    assert repr(loaded) == repr(new)
    assert len(loaded.fit(X, Y).get_state()) == 2


# Parameters and files -----------------------------------------------------------------------------------------------


def test_parameters() -> None:
    made = OrtGradientOptimizer(add_loss_output(linear()), NAMES)
    assert repr(made).startswith("OrtGradientOptimizer(model_onnx='")
    assert "learning_rate='invscaling'" in repr(made)
    assert made.get_params()["device"] == "cpu"
    assert made.set_params(learning_rate=0.5, max_iter=2) is made
    assert len(made.fit(X, Y).train_losses_) == 2
    assert repr(clone(made)).partition("value=")[0] == repr(made).partition("value=")[0]
    with pytest.raises(NotImplementedError, match="former gradients"):
        made.set_params(learning_rate="Nesterov")


def test_gradient_graphs_are_written(tmp_path: Path) -> None:
    path = tmp_path / "gradient.onnx"
    fitted(max_iter=1, saved_gradient=str(path))
    for file in (path, tmp_path / "gradient.onnx.training.onnx"):
        onnx.checker.check_model(onnx.load(file), full_check=True)


def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    fitted(max_iter=2, verbose=2)
    assert "loss=" in capsys.readouterr().err

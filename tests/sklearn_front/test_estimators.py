"""What scikit-learn expects of estimators beyond its checks: pickles, pipelines, searches, warm starts, stopping."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pandas
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onward.sklearn import OnnxClassifier, OnnxRegressor
from onward.testing import run_on_runtime
from tests.sklearn_front.data import diabetes, digits, iris, quiet, three_targets

SMALL: dict[str, Any] = {
    "hidden_layer_sizes": (12,),
    "learning_rate_init": 0.02,
    "max_iter": 20,
    "random_state": 0,
    "batch_size": 50,
}
NAMES = np.array(["setosa", "versicolor", "virginica"])

pytestmark = pytest.mark.filterwarnings("ignore:Stochastic Optimizer")


def curves_equal(a: Any, b: Any) -> None:
    np.testing.assert_array_equal(a.loss_curve_, b.loss_curve_)
    for mine, other in zip(a.coefs_ + a.intercepts_, b.coefs_ + b.intercepts_, strict=True):
        np.testing.assert_array_equal(mine, other)


# Going on -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["adam", "sgd"])
def test_partial_fit_is_one_epoch_of_fit(solver: str) -> None:
    X, y = iris()  # noqa: N806
    settings = {**SMALL, "solver": solver}
    fitted = OnnxClassifier(**{**settings, "max_iter": 1}).fit(X, y)
    curves_equal(OnnxClassifier(**settings).partial_fit(X, y, classes=np.unique(y)), fitted)
    numbers = diabetes()
    curves_equal(
        OnnxRegressor(**settings).partial_fit(*numbers), OnnxRegressor(**{**settings, "max_iter": 1}).fit(*numbers)
    )


def test_partial_fits_without_shuffling_are_a_fit() -> None:
    X, y = iris()  # noqa: N806
    settings = {**SMALL, "shuffle": False, "max_iter": 5}
    once, often = OnnxClassifier(**settings).fit(X, y), OnnxClassifier(**settings)
    for _ in range(5):
        often.partial_fit(X, y, classes=[0, 1, 2])
    curves_equal(often, once)
    assert often.t_ == once.t_ == 5 * len(X)
    assert often.n_iter_ == 1


@pytest.mark.parametrize("solver", ["adam", "sgd", "rmsprop"])
def test_a_pickle_goes_on_as_if_nothing_had_been(solver: str) -> None:
    X, y = iris()  # noqa: N806
    one = OnnxClassifier(**{**SMALL, "solver": solver})
    for _ in range(3):
        one.partial_fit(X, y, classes=[0, 1, 2])
    other, third = pickle.loads(pickle.dumps(one)), copy.deepcopy(one)
    for estimator in (one, other, third):
        estimator.partial_fit(X, y).partial_fit(X, y)
    curves_equal(other, one)
    curves_equal(third, one)
    np.testing.assert_array_equal(other.predict_proba(X), one.predict_proba(X))


def test_partial_fit_goes_on_after_fit() -> None:
    X, y = iris()  # noqa: N806
    settings = {**SMALL, "shuffle": False, "max_iter": 3}
    long, short = OnnxClassifier(**{**settings, "max_iter": 4}).fit(X, y), OnnxClassifier(**settings).fit(X, y)
    curves_equal(short.partial_fit(X, y), long)


def test_another_solver_begins_anew() -> None:
    X, y = iris()  # noqa: N806
    estimator = OnnxClassifier(**SMALL).partial_fit(X, y, classes=[0, 1, 2])
    other = pickle.loads(pickle.dumps(estimator))
    for each in (estimator, other):
        each.set_params(solver="sgd", alpha=0.1).partial_fit(X, y, sample_weight=np.ones(len(X)))
    curves_equal(estimator, other)


def test_warm_start() -> None:
    X, y = iris()  # noqa: N806
    warm = OnnxClassifier(**{**SMALL, "max_iter": 4}, warm_start=True).fit(X, y)
    first = [w.copy() for w in warm.coefs_]
    assert len(warm.loss_curve_) == 4
    warm.fit(X, y)
    assert len(warm.loss_curve_) == 8
    assert warm.n_iter_ == 4
    assert warm.t_ == 8 * len(X)
    assert warm.loss_curve_[4] < warm.loss_curve_[0]
    assert not np.array_equal(first[0], warm.coefs_[0])
    with pytest.raises(ValueError, match="warm_start can only be used where `y` has the same classes"):
        warm.fit(X, (y > 0).astype(int))
    cold = OnnxClassifier(**{**SMALL, "max_iter": 4}).fit(X, y).fit(X, y)
    assert len(cold.loss_curve_) == 4
    np.testing.assert_array_equal(cold.coefs_[0], first[0])


def test_set_params_then_fit() -> None:
    X, y = iris()  # noqa: N806
    estimator = OnnxClassifier(**SMALL).fit(X, y)
    estimator.set_params(hidden_layer_sizes=(5,), activation="tanh").fit(X, y)
    assert [w.shape for w in estimator.coefs_] == [(4, 5), (5, 3)]
    assert estimator.fit(X[:, :2], y).n_features_in_ == 2


# Stopping -----------------------------------------------------------------------------------------------------------


def test_convergence() -> None:
    X, y = iris()  # noqa: N806
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = OnnxClassifier(**{**SMALL, "max_iter": 2000, "tol": 1e-2, "n_iter_no_change": 3}).fit(X, y)
    assert done.n_iter_ < 2000
    assert done.best_loss_ == min(done.loss_curve_)
    with pytest.warns(ConvergenceWarning, match=r"Maximum iterations \(20\) reached"):
        OnnxClassifier(**SMALL).fit(X, y)


def test_early_stopping_keeps_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = digits()  # noqa: N806
    settings = {**SMALL, "max_iter": 100, "n_iter_no_change": 3, "early_stopping": True, "validation_fraction": 0.2}
    estimator = OnnxClassifier(**settings, verbose=True).fit(X, y)
    assert estimator.best_validation_score_ == max(estimator.validation_scores_)
    assert len(estimator.validation_scores_) == estimator.n_iter_ < 100
    assert estimator.best_loss_ is None
    said = capsys.readouterr().out
    assert "Iteration 1, loss = " in said
    assert "Validation score did not improve more than tol=0.000100 for 3 consecutive epochs. Stopping." in said
    with pytest.raises(ValueError, match="partial_fit does not support early_stopping=True"):
        estimator.partial_fit(X, y)
    with pytest.raises(ValueError, match="The validation set is too small"):
        OnnxClassifier(**{**settings, "validation_fraction": 0.001}).fit(X, y)


def test_interruption_keeps_what_was_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    from onward.sklearn.learner import Learner

    X, y = iris()  # noqa: N806
    learn, calls = Learner.learn, []

    def interrupted(self: Learner, batches: Any) -> tuple[float, float]:
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return learn(self, batches)

    monkeypatch.setattr(Learner, "learn", interrupted)
    with pytest.warns(UserWarning, match="Training interrupted by user"):
        estimator = OnnxClassifier(**SMALL).fit(X, y)
    assert estimator.n_iter_ == 1
    assert estimator.predict(X).shape == y.shape


# Among the others of scikit-learn -----------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_search_in_a_pipeline(jobs: int) -> None:
    X, y = iris()  # noqa: N806
    pipeline = make_pipeline(StandardScaler(), OnnxClassifier(**SMALL))
    grid = {"onnxclassifier__learning_rate_init": [1e-6, 0.05]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of processes that joblib starts
        search = GridSearchCV(pipeline, grid, cv=3, n_jobs=jobs).fit(X, NAMES[y])
    assert search.best_params_ == {"onnxclassifier__learning_rate_init": 0.05}
    assert search.score(X, NAMES[y]) > 0.9
    assert set(search.predict(X)) == set(NAMES)


def test_cross_validation_and_calibration() -> None:
    X, y = iris()  # noqa: N806
    assert cross_val_score(OnnxClassifier(**SMALL), X, y, cv=3).mean() > 0.85
    assert cross_val_score(OnnxRegressor(**SMALL), *diabetes(), cv=3).mean() > 0.3
    calibrated = CalibratedClassifierCV(OnnxClassifier(**SMALL), cv=3).fit(X, y)
    np.testing.assert_allclose(calibrated.predict_proba(X).sum(1), 1)
    assert calibrated.score(X, y) > 0.9


def test_clone_is_unfitted_and_equal() -> None:
    X, y = iris()  # noqa: N806
    estimator = OnnxClassifier(**SMALL).fit(X, y)
    other = clone(estimator)
    assert not hasattr(other, "classes_")
    curves_equal(other.fit(X, y), estimator)


def test_the_same_in_another_process_and_in_threads() -> None:
    X, y = iris()  # noqa: N806
    expected = OnnxClassifier(**SMALL).fit(X, y)
    with ThreadPoolExecutor(4) as pool:
        for other in pool.map(lambda _: quiet(OnnxClassifier(**SMALL), X, y), range(4)):
            curves_equal(other, expected)
        results = list(pool.map(lambda _: expected.predict_proba(X), range(8)))
    assert all(np.array_equal(result, results[0]) for result in results)
    program = (
        "import sys, pickle, warnings; warnings.simplefilter('ignore')\n"
        "from onward.sklearn import OnnxClassifier\n"
        "X, y, settings = pickle.load(sys.stdin.buffer)\n"
        "fitted = OnnxClassifier(**settings).fit(X, y)\n"
        "sys.stdout.buffer.write(pickle.dumps((fitted, fitted.predict_proba(X))))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps((X, y, SMALL)), capture_output=True, check=True
    )
    fitted, probabilities = pickle.loads(run.stdout)
    curves_equal(fitted, expected)
    np.testing.assert_array_equal(probabilities, expected.predict_proba(X))
    np.testing.assert_array_equal(fitted.predict_proba(X), probabilities)


# Data of all kinds --------------------------------------------------------------------------------------------------


def test_tables_lists_and_sparse_matrices() -> None:
    X, y = digits()  # noqa: N806
    expected = OnnxClassifier(**SMALL).fit(X, y)
    for given in (X.tolist(), scipy.sparse.csr_matrix(X), scipy.sparse.csc_array(X)):
        curves_equal(OnnxClassifier(**SMALL).fit(given, y), expected)
        np.testing.assert_array_equal(expected.predict(given), expected.predict(X))
    frame = pandas.DataFrame(X, columns=[f"pixel {index}" for index in range(64)])
    fitted = OnnxClassifier(**SMALL).fit(frame, pandas.Series(y))
    curves_equal(fitted, expected)
    assert list(fitted.feature_names_in_) == list(frame)
    named = OnnxClassifier(**SMALL).fit(frame, pandas.Series([f"digit {label}" for label in y]))
    assert list(named.predict(frame)[:3]) == [f"digit {label}" for label in fitted.predict(frame)[:3]]
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.predict(frame.rename(columns={"pixel 0": "other"}))


@pytest.mark.parametrize("labels", [[-1, 1], [False, True], ["no", "yes"], [3.0, 7.0], [10, 20]])
def test_labels_of_all_kinds(labels: list[Any]) -> None:
    X, y = iris()  # noqa: N806
    kinds = np.array(labels)
    estimator = OnnxClassifier(**SMALL).fit(X, kinds[(y > 0).astype(int)])
    np.testing.assert_array_equal(estimator.classes_, kinds)
    assert estimator.classes_.dtype == estimator.predict(X).dtype == kinds.dtype
    assert estimator.score(X, kinds[(y > 0).astype(int)]) > 0.95
    np.testing.assert_array_equal(estimator.predict(X), kinds[(estimator.decision_function(X) > 0).astype(int)])
    said = run_on_runtime(estimator.model_, {"X": X})
    np.testing.assert_array_equal(said["label"], estimator.predict(X))
    np.testing.assert_allclose(said["probabilities"], estimator.predict_proba(X), rtol=1e-12, atol=1e-14)


def test_probabilities() -> None:
    X, y = iris()  # noqa: N806
    estimator = OnnxClassifier(**SMALL).fit(X, NAMES[y])
    probabilities = estimator.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    np.testing.assert_allclose(np.log(probabilities), estimator.predict_log_proba(X))
    np.testing.assert_array_equal(NAMES[probabilities.argmax(1)], estimator.predict(X))
    np.testing.assert_array_equal(NAMES[estimator.decision_function(X).argmax(1)], estimator.predict(X))
    far = estimator.predict_log_proba(X * 1e6)
    assert np.isfinite(far).all(), "logarithms of probabilities that are 0"


def test_several_labels_a_row() -> None:
    X, y = digits()  # noqa: N806
    labels = np.stack([y > 4, y % 2 == 0, y == 3], 1).astype(int)
    estimator = OnnxClassifier(**SMALL).fit(X, labels)
    assert estimator.predict(X).shape == estimator.predict_proba(X).shape == labels.shape
    assert (estimator.predict(X) == labels).mean() > 0.9
    curves_equal(OnnxClassifier(**SMALL).fit(X, scipy.sparse.csr_matrix(labels)), estimator)
    begun = OnnxClassifier(**SMALL).partial_fit(X, labels)
    np.testing.assert_array_equal(begun.classes_, [0, 1, 2])
    said = run_on_runtime(estimator.model_, {"X": X})
    np.testing.assert_array_equal(said["label"], estimator.predict(X))
    with pytest.raises(ValueError, match="class_weight is for classes that exclude each other"):
        OnnxClassifier(**SMALL, class_weight="balanced").fit(X, labels)


def test_columns_of_targets() -> None:
    X, y = diabetes()  # noqa: N806
    with pytest.warns(DataConversionWarning, match="A column-vector y was passed"):
        column = OnnxRegressor(**SMALL).fit(X, y[:, None])
    curves_equal(column, OnnxRegressor(**SMALL).fit(X, y))
    assert column.predict(X).shape == y.shape
    X, y = three_targets()  # noqa: N806
    several = OnnxRegressor(**SMALL).fit(X, y)
    assert several.predict(X).shape == y.shape
    np.testing.assert_allclose(run_on_runtime(several.model_, {"X": X})["variable"], several.predict(X), rtol=1e-12)


@pytest.mark.parametrize("given", [np.float64, np.float32])
@pytest.mark.parametrize("wanted", [None, "float32", "float64"])
def test_precision(given: type, wanted: str | None) -> None:
    X, y = diabetes()  # noqa: N806
    estimator = OnnxRegressor(**SMALL, dtype=wanted).fit(X.astype(given), y)
    assert estimator.predict(X.astype(given)).dtype == np.dtype(wanted or given)
    assert estimator.score(X, y) > 0.4


def test_rows_without_weight_do_not_count() -> None:
    X, y = iris()  # noqa: N806
    weight = (y != 2).astype(float)
    estimator = OnnxClassifier(**SMALL).fit(X, y, weight)
    assert 2 not in estimator.predict(X[y != 2])
    in_order = OnnxClassifier(**{**SMALL, "max_iter": 1, "shuffle": False, "alpha": 10.0}).fit(X, y, weight)
    without = OnnxClassifier(**{**SMALL, "max_iter": 1, "shuffle": False, "alpha": 10.0})
    without.partial_fit(X[y != 2], y[y != 2], classes=[0, 1, 2])
    np.testing.assert_allclose(in_order.loss_ * 3, without.loss_ * 2, err_msg="the last batch has no weight at all")


def test_two_rows_and_batches_larger_than_all() -> None:
    X, y = iris()  # noqa: N806
    estimator = OnnxClassifier(**{**SMALL, "batch_size": "auto"}).fit(X[[0, 99]], y[[0, 99]])
    np.testing.assert_array_equal(estimator.predict(X[[0, 99]]), y[[0, 99]])
    with pytest.warns(UserWarning, match="larger than sample size. It is going to be clipped"):
        OnnxClassifier(**{**SMALL, "batch_size": 1000}).fit(X, y)


@pytest.mark.parametrize("solver", ["adamw", "lion", "rmsprop"])
def test_other_solvers(solver: str) -> None:
    X, y = iris()  # noqa: N806
    assert OnnxClassifier(**{**SMALL, "solver": solver, "learning_rate_init": 0.01}).fit(X, y).score(X, y) > 0.85


@pytest.mark.parametrize("loss", ["hinge", "soft_margin", "cross_entropy", "focal", "multi_margin"])
def test_other_losses_of_classes(loss: str) -> None:
    X, y = iris()  # noqa: N806
    assert OnnxClassifier(**SMALL, loss=loss).fit(X, y).score(X, y) > 0.85


@pytest.mark.parametrize("loss", ["l1", "huber", "mse"])
def test_other_losses_of_numbers(loss: str) -> None:
    assert OnnxRegressor(**SMALL, loss=loss).fit(*diabetes()).score(*diabetes()) > 0.4

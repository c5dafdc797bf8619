"""Every metric equals scikit-learn's on the whole set, however it is cut into batches."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn import metrics as sk

from onward import metrics
from onward.metrics import Metric, Output


def evaluate(metric: Metric, prediction: np.ndarray, target: np.ndarray, weight: np.ndarray | None = None) -> float:
    """In batches of 7, of which the last is short."""
    metric.start()
    for first in range(0, len(prediction), 7):
        rows = slice(first, first + 7)
        metric.update(prediction[rows], target[rows], None if weight is None else weight[rows])
    return metric.result()


def reference(function, *args, **kwargs) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns where it divides by nothing
        return float(function(*args, **kwargs))


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def labels_of(case: str, rng: np.random.Generator, rows: int, classes: int) -> np.ndarray:
    return {
        "all": np.concatenate([np.arange(classes), rng.integers(0, classes, rows - classes)]),
        "one class": np.full(rows, 1),
        "class 0": np.zeros(rows, np.int64),
        "missing": rng.integers(0, classes - 1, rows),
    }[case]


CASES = ["all", "one class", "class 0", "missing"]
AVERAGES = ["macro", "micro", "weighted"]


@pytest.fixture(params=[None, 0, 1], ids=["no weights", "weights", "weights with zeros"])
def weighting(request: pytest.FixtureRequest):
    def make(rng: np.random.Generator, rows: int) -> np.ndarray | None:
        if request.param is None:
            return None
        weight = rng.random(rows)
        weight[: rows // 3 * request.param] = 0
        return weight

    return make


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_predicted_classes(case: str, classes: int, weighting) -> None:
    rng = np.random.default_rng(classes)
    y = labels_of(case, rng, 60, classes)
    scores = rng.normal(size=(60, classes)).astype(np.float32)
    scores[:20] = np.round(scores[:20])  # ties
    w, predicted, close = weighting(rng, 60), scores.argmax(axis=1), pytest.approx
    got = {
        name: evaluate(metrics.get(name), scores, y, w)
        for name in (
            "accuracy",
            "balanced_accuracy",
            "top_1",
            "top_2",
            *(f"{m}_{a}" for m in MEASURES for a in AVERAGES),
        )
    }
    assert got["accuracy"] == close(reference(sk.accuracy_score, y, predicted, sample_weight=w), abs=1e-14)
    wanted = reference(sk.balanced_accuracy_score, y, predicted, sample_weight=w)
    assert got["balanced_accuracy"] == close(wanted, abs=1e-14, nan_ok=True)
    for k in (1, 2):
        shown = scores if classes > 2 else scores[:, 1] - scores[:, 0]
        wanted = reference(sk.top_k_accuracy_score, y, shown, k=k, labels=range(classes), sample_weight=w)
        if classes > 2 or k == 2:
            assert got[f"top_{k}"] == close(wanted, abs=1e-14)
    for name, function in MEASURES.items():
        for average in AVERAGES:
            wanted = reference(function, y, predicted, average=average, sample_weight=w, zero_division=0)
            assert got[f"{name}_{average}"] == close(wanted, abs=1e-14), (name, average)
    if classes == 2:
        for name, function in MEASURES.items():
            wanted = reference(function, y, predicted, sample_weight=w, zero_division=0)
            assert evaluate(metrics.get(name), scores, y, w) == close(wanted, abs=1e-14)
            assert evaluate(metrics.get(f"{name}_binary"), scores, y, w) == close(wanted, abs=1e-14)


MEASURES = {"f1": sk.f1_score, "precision": sk.precision_score, "recall": sk.recall_score}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("classes", [2, 4])
def test_auc_of_classes(case: str, classes: int, weighting) -> None:
    rng = np.random.default_rng(7)
    y = labels_of(case, rng, 80, classes)
    scores = np.round(rng.normal(size=(80, classes)) * 2) / 2  # many ties
    w, p = weighting(rng, 80), softmax(scores)
    if classes == 2:
        wanted = reference(sk.roc_auc_score, y, scores[:, 1] - scores[:, 0], sample_weight=w)
    elif len(set(y)) == 1:  # which scikit-learn refuses for several classes
        wanted = np.nan
    else:
        wanted = reference(sk.roc_auc_score, y, p, multi_class="ovr", labels=range(classes), sample_weight=w)
    found = evaluate(metrics.get("auc", output="probabilities"), p, y, w)
    assert found == pytest.approx(wanted, abs=1e-13, nan_ok=True)
    # Which probabilities are equal depends on how they are rounded, and the logits of two classes are compared as such.
    near = 1e-13 if classes == 2 else 0.01
    assert evaluate(metrics.get("auc"), scores, y, w) == pytest.approx(wanted, abs=near, nan_ok=True)
    logs = evaluate(metrics.get("auc", output="log_probabilities"), np.log(p), y, w)
    assert logs == pytest.approx(wanted, abs=near, nan_ok=True)


def test_auc_of_logits(weighting) -> None:
    rng = np.random.default_rng(8)
    y, scores = rng.integers(0, 4, 90), rng.normal(size=(90, 4)) * 3
    w = weighting(rng, 90)
    wanted = reference(sk.roc_auc_score, y, softmax(scores), multi_class="ovr", sample_weight=w)
    assert evaluate(metrics.get("auc"), scores, y, w) == pytest.approx(wanted, abs=1e-13)
    logs = np.log(softmax(scores))
    assert evaluate(metrics.get("auc", output="log_probabilities"), logs, y, w) == pytest.approx(wanted, abs=1e-13)


@pytest.mark.parametrize("output", [Output.BINARY_LOGITS, Output.BINARY_PROBABILITIES, Output.MARGINS])
@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_yes_and_no(output: Output, column: bool, case: str, weighting) -> None:
    """One score a row: a yes is above 0, or above 0.5 for probabilities."""
    rng = np.random.default_rng(3)
    y = labels_of(case, rng, 50, 2)
    logits = np.round(rng.normal(size=50) * 4) / 4
    x = 1 / (1 + np.exp(-logits)) if output is Output.BINARY_PROBABILITIES else logits
    w, predicted = weighting(rng, 50), (logits > 0).astype(int)
    target = (2.0 * y - 1 if output is Output.MARGINS else y.astype(np.float64)).astype(np.float32)
    if column:
        x, target = x[:, None], target[:, None]
    wanted = {
        "accuracy": reference(sk.accuracy_score, y, predicted, sample_weight=w),
        "balanced_accuracy": reference(sk.balanced_accuracy_score, y, predicted, sample_weight=w),
        "f1": reference(sk.f1_score, y, predicted, sample_weight=w, zero_division=0),
        "precision": reference(sk.precision_score, y, predicted, sample_weight=w, zero_division=0),
        "recall_macro": reference(sk.recall_score, y, predicted, sample_weight=w, zero_division=0, average="macro"),
        "auc": reference(sk.roc_auc_score, y, logits, sample_weight=w),
        "log_loss": reference(sk.log_loss, y, 1 / (1 + np.exp(-logits)), sample_weight=w, labels=[0, 1]),
        "top_1": reference(sk.accuracy_score, y, predicted, sample_weight=w),
        "top_2": 1.0,
    }
    for name, value in wanted.items():
        found = evaluate(metrics.get(name, output=output), x, target, w)
        assert found == pytest.approx(value, abs=1e-13, nan_ok=True), name


def test_several_questions_of_yes_and_no(weighting) -> None:
    rng = np.random.default_rng(5)
    y = rng.integers(0, 2, (60, 4))
    y[:, 3] = np.arange(60) % 2
    x = np.round(rng.normal(size=(60, 4)) * 2) / 2
    w, predicted = weighting(rng, 60), (x > 0).astype(int)
    wanted = {
        "accuracy": reference(sk.accuracy_score, y, predicted, sample_weight=w),
        "auc": reference(sk.roc_auc_score, y, x, sample_weight=w, average="macro"),
        **{
            f"{name}_{average}": reference(function, y, predicted, average=average, sample_weight=w, zero_division=0)
            for name, function in MEASURES.items()
            for average in AVERAGES
        },
    }
    wanted["f1"] = wanted["f1_macro"]
    for name, value in wanted.items():
        found = evaluate(metrics.get(name, output="binary_logits"), x, y.astype(np.float32), w)
        assert found == pytest.approx(value, abs=1e-13), name


@pytest.mark.parametrize("classes", [2, 5])
def test_likelihood(classes: int, weighting) -> None:
    rng = np.random.default_rng(1)
    y, scores = rng.integers(0, classes, 40), rng.normal(size=(40, classes)) * 3
    w, p = weighting(rng, 40), softmax(scores)
    wanted = reference(sk.log_loss, y, p, sample_weight=w, labels=range(classes))
    for output, x in (("logits", scores), ("probabilities", p), ("log_probabilities", np.log(p))):
        assert evaluate(metrics.get("log_loss", output=output), x, y, w) == pytest.approx(wanted, abs=1e-13)
        assert evaluate(metrics.get("perplexity", output=output), x, y, w) == pytest.approx(np.exp(wanted), rel=1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_certain_and_wrong(dtype: type) -> None:
    """Probabilities of 0 are cut by the precision that they have, as in scikit-learn; logits are not."""
    p, y = np.array([[1, 0], [0, 1], [1, 0]], dtype), np.array([0, 1, 1])
    wanted = reference(sk.log_loss, y, p)
    assert evaluate(metrics.get("log_loss", output="probabilities"), p, y) == pytest.approx(
        wanted,
        rel=1e-12 if dtype is np.float64 else 1e-6,  # scikit-learn adds up in the precision of the data
    )
    logits = np.array([[1000, 0]], dtype)
    assert evaluate(metrics.get("log_loss"), logits, np.array([1])) == 1000


REGRESSION = {
    "mae": sk.mean_absolute_error,
    "mse": sk.mean_squared_error,
    "rmse": sk.root_mean_squared_error,
    "mape": sk.mean_absolute_percentage_error,
    "r2": sk.r2_score,
}


@pytest.mark.parametrize("name", REGRESSION)
@pytest.mark.parametrize("columns", [None, 1, 3])
@pytest.mark.parametrize("target", ["random", "constant", "met", "far from 0", "zeros", "one row"])
def test_numbers(name: str, columns: int | None, target: str, weighting) -> None:
    rng = np.random.default_rng(2)
    rows = 1 if target == "one row" else 50
    shape = (rows,) if columns is None else (rows, columns)
    x = rng.normal(size=shape)
    y = {
        "random": rng.normal(size=shape),
        "constant": np.full(shape, 2.0),
        "met": x,
        "far from 0": rng.normal(size=shape) + 1e6,
        "zeros": np.zeros(shape),
        "one row": rng.normal(size=shape),
    }[target]
    w = weighting(rng, rows)
    wanted = reference(REGRESSION[name], y, x, sample_weight=w)
    assert evaluate(metrics.get(name), x, y, w) == pytest.approx(wanted, rel=1e-9, abs=1e-12, nan_ok=True)


def test_r2_of_a_target_that_is_met() -> None:
    y = np.full(20, 0.1)  # which is no sum of powers of 2: its mean is not exactly 0.1 in scikit-learn
    assert evaluate(metrics.get("r2"), y, y) == 1.0
    assert evaluate(metrics.get("r2"), y + 1, y) == 0.0


def test_sums_are_in_double_precision() -> None:
    x = np.full(200_000, 0.1, np.float32)
    x[0] = 2**24
    found = evaluate(metrics.get("mae"), x[:700], np.zeros(700, np.float32))
    assert found == pytest.approx((2**24 + 699 * float(np.float32(0.1))) / 700, rel=1e-15)

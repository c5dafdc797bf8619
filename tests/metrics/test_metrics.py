"""Shapes, sequences, functions, names and mistakes."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import mean_absolute_percentage_error, precision_score

from onward import OnwardError, metrics
from onward.errors import UnknownNameError
from onward.metrics import Output, output_of
from tests.metrics.test_against_sklearn import evaluate

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("axis", [1, -1])
def test_sequences(axis: int) -> None:
    """Classes on axis 1, as losses have them, or on the last one; labels that are ignored do not count."""
    scores, labels = RNG.normal(size=(6, 9, 4)), RNG.integers(0, 4, (6, 9))
    labels[0, 3:] = -100
    labels[5] = -100
    kept = labels != -100
    given = np.moveaxis(scores, -1, axis)
    assert evaluate(metrics.get("accuracy"), given, labels) == np.mean(scores.argmax(-1)[kept] == labels[kept])
    flat = evaluate(metrics.get("perplexity"), scores[kept], labels[kept])
    assert evaluate(metrics.get("perplexity"), given, labels) == pytest.approx(flat, rel=1e-14)
    weights = RNG.random(6)
    repeated = np.repeat(weights[:, None], 9, axis=1)[kept]
    wanted = evaluate(metrics.get("f1_macro"), scores[kept], labels[kept], repeated)
    assert evaluate(metrics.get("f1_macro"), given, labels, weights) == pytest.approx(wanted, rel=1e-13)


def test_the_axis_of_classes_where_both_fit() -> None:
    scores, labels = RNG.normal(size=(5, 4, 4)), RNG.integers(0, 4, (5, 4))
    first, last = scores.argmax(1) == labels, scores.argmax(2) == labels
    assert evaluate(metrics.get("accuracy"), scores, labels) == first.mean()
    assert evaluate(metrics.get("accuracy", class_axis=-1), scores, labels) == last.mean()


def test_sequences_of_other_lengths_in_each_batch() -> None:
    metric = metrics.get("accuracy")
    metric.update(np.eye(3)[None, [0, 1, 2]], np.array([[0, 1, 1]]))
    metric.update(np.eye(3)[None, [0]], np.array([[0]]))
    assert metric.result() == 3 / 4


def test_images_of_yes_and_no() -> None:
    x, y = RNG.normal(size=(3, 1, 4, 5)), RNG.integers(0, 2, (3, 1, 4, 5))
    assert evaluate(metrics.get("accuracy", output="binary_logits"), x, y) == np.mean((x > 0) == y)
    assert evaluate(metrics.get("accuracy", output="binary_logits"), x, y[:, 0]) == np.mean((x > 0) == y)


def test_one_column_of_a_classifier() -> None:
    """A single score is one of yes and no, whatever the loss."""
    x, y = np.array([[0.2], [0.7], [0.4]]), np.array([0, 1, 1])
    assert evaluate(metrics.get("accuracy", output="probabilities"), x, y) == pytest.approx(2 / 3)
    assert evaluate(metrics.get("accuracy", output="logits"), x, y) == pytest.approx(2 / 3)
    assert evaluate(metrics.get("recall", output="values"), x, y) == 0.5
    assert evaluate(metrics.get("recall", output="logits"), x, y) == 1


def test_labels_as_probabilities_and_as_floats() -> None:
    x, y = RNG.normal(size=(12, 3)), RNG.integers(0, 3, 12)
    wanted = evaluate(metrics.get("accuracy"), x, y)
    assert evaluate(metrics.get("accuracy"), x, np.eye(3)[y] * 0.8) == wanted
    assert evaluate(metrics.get("accuracy"), x, y.astype(np.float32)) == wanted
    assert evaluate(metrics.get("accuracy"), x, y[:, None]) == wanted


def test_start_forgets() -> None:
    x, y = RNG.normal(size=(20, 3)), RNG.integers(0, 3, 20)
    for name in metrics.names():
        metric = metrics.get(name)
        target = RNG.normal(size=(20, 3)) if name in ("mae", "mse", "rmse", "mape", "r2") else y
        first = evaluate(metric, x, target)
        evaluate(metric, x[:5], target[:5])
        assert evaluate(metric, x, target) == first


@pytest.mark.parametrize("name", metrics.names())
def test_nothing_seen(name: str) -> None:
    assert np.isnan(metrics.get(name).result())


@pytest.mark.parametrize("name", metrics.names())
def test_nan_is_not_hidden(name: str) -> None:
    x = RNG.normal(size=(20, 3))
    x[3, 1] = np.nan
    y = RNG.normal(size=(20, 3)) if name in ("mae", "mse", "rmse", "mape", "r2") else np.arange(20) % 3
    assert np.isnan(evaluate(metrics.get(name), x, y))


def test_which_is_better() -> None:
    lower = {name for name in metrics.names() if metrics.get(name).higher_is_better is False}
    assert lower == {"log_loss", "mae", "mape", "mse", "perplexity", "rmse"}
    assert all(metrics.get(name).higher_is_better is not None for name in metrics.names())


def test_what_a_model_returns() -> None:
    assert output_of("bce_with_logits") is Output.BINARY_LOGITS
    assert output_of("bce") is Output.BINARY_PROBABILITIES
    assert output_of("nll") is Output.LOG_PROBABILITIES
    assert output_of("my_loss", "Sigmoid") is Output.BINARY_PROBABILITIES
    assert output_of(None, "Softmax") is Output.PROBABILITIES
    assert output_of("cross_entropy", "Softmax") is Output.LOGITS
    assert output_of(None) is Output.LOGITS


def test_functions_get_the_whole_set() -> None:
    def spread(prediction, target):
        return np.median(prediction - target)

    x, y = RNG.normal(size=(20, 2)), RNG.normal(size=(20, 2))
    metric = metrics.get(spread)
    assert (metric.name, metric.higher_is_better) == ("spread", None)
    assert evaluate(metric, x, y) == np.median(x - y)
    spread.higher_is_better = False
    assert metrics.get(spread).higher_is_better is False


def test_functions_with_weights() -> None:
    def weighted(prediction, target, sample_weight=None):
        return np.average(prediction, weights=sample_weight)

    x, w = RNG.normal(size=20), RNG.random(20)
    assert evaluate(metrics.get(weighted), x, x, w) == np.average(x, weights=w)
    assert evaluate(metrics.get(weighted), x, x) == np.average(x)
    with pytest.raises(OnwardError, match="takes no weights of rows"):
        evaluate(metrics.get(lambda prediction, target: 0.0), x, x, w)


def test_functions_of_scikit_learn_get_the_target_first() -> None:
    x, y = RNG.random(20) + 1, RNG.random(20) + 3
    assert evaluate(metrics.get(mean_absolute_percentage_error), x, y) == mean_absolute_percentage_error(y, x)
    a, b = RNG.integers(0, 2, 20), RNG.integers(0, 2, 20)
    assert evaluate(metrics.get(precision_score), a, b) == precision_score(b, a)


def test_names_of_several() -> None:
    found = metrics.get_all({"top": "top_3", "mine": lambda prediction, target: 1})
    assert [metric.name for metric in found] == ["top", "mine"]
    assert [metric.name for metric in metrics.get_all("accuracy")] == ["accuracy"]
    assert [metric.name for metric in metrics.get_all(["top_5", "f1_macro"])] == ["top_5", "f1_macro"]
    with pytest.raises(OnwardError, match="two metrics have the name 'accuracy'"):
        metrics.get_all(["accuracy", "accuracy"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: metrics.get("acuracy"), "there is no metric 'acuracy'.*is 'accuracy' meant"),
        (lambda: metrics.get(3), "a metric is a name .* or a function"),
        (lambda: metrics.get("top_k", k=0), "at least 1, not 0"),
        (lambda: metrics.get("f1", average="all"), "average='all' is not known"),
        (lambda: metrics.get("accuracy", k=3), "does not take these options"),
        (lambda: evaluate(metrics.get("f1_binary"), np.eye(3), np.arange(3)), "use f1_macro"),
        (lambda: evaluate(metrics.get("accuracy"), np.eye(3), np.array([0, 1, 3])), "a label is 3, .* 3 classes"),
        (lambda: evaluate(metrics.get("accuracy"), np.eye(3), np.array([0, 1])), "do not fit scores"),
        (lambda: evaluate(metrics.get("accuracy"), np.eye(3), np.array([0, 1, 0.5])), "no whole numbers"),
        (lambda: evaluate(metrics.get("mse"), np.eye(3), np.ones(3)), "do not belong together"),
        (lambda: evaluate(metrics.get("mse"), np.ones(3), np.ones(3), np.ones(2)), "2 weights for 3 rows"),
        (lambda: evaluate(metrics.get(lambda prediction, target: prediction), np.ones(3), np.ones(3)), "one number"),
    ],
)
def test_mistakes(make, message: str) -> None:
    with pytest.raises(OnwardError, match=message):
        make()


def test_an_unknown_name_is_that() -> None:
    with pytest.raises(UnknownNameError):
        metrics.get("loss")


@pytest.mark.parametrize("name", metrics.names())
@pytest.mark.parametrize("weighted", [False, True])
def test_what_several_processes_have_seen(name: str, weighted: bool) -> None:
    """Parts of each batch, put together: the metric of all of it."""
    random = np.random.default_rng(3)
    of_numbers = name in ("mae", "mse", "rmse", "mape", "r2")
    scores = random.normal(size=(40, 2 if of_numbers else 4))
    target = random.normal(size=(40, 2)) if of_numbers else random.integers(0, 4, 40)
    weight = random.uniform(0.1, 2, 40) if weighted else None

    def part(metric: metrics.Metric, *rows: slice) -> metrics.Metric:
        for chosen in rows:
            if len(scores[chosen]):
                metric.update(scores[chosen], target[chosen], None if weight is None else weight[chosen])
        return metric

    whole = part(metrics.get(name), slice(0, 40))
    merged = part(metrics.get(name), slice(0, 10))
    parts = [
        part(metrics.get(name), slice(10, 14), slice(20, 21)),
        part(metrics.get(name), slice(14, 20), slice(21, 40)),
        metrics.get(name),  # a process without rows
    ]
    merged.merge(parts)
    assert merged.result() == pytest.approx(whole.result(), rel=1e-12)


def test_rows_of_several_processes_stay_in_order() -> None:
    seen = []
    metric, *parts = (metrics.get(lambda x, y: seen.append((x.tolist(), y.tolist())) or 0.0) for _ in range(3))
    for index, part in enumerate(parts):
        for batch in range(2):
            rows = np.arange(2) + 4 * batch + 2 * index
            part.update(rows, -rows)
    metric.merge(parts)
    metric.result()
    assert seen == [(list(range(8)), [-row for row in range(8)])]


def test_a_metric_that_cannot_be_merged_says_so() -> None:
    class Own(metrics.Metric):
        def start(self) -> None: ...
        def update(self, prediction: object, target: object, weight: object = None) -> None: ...
        def result(self) -> float:
            return 0.0

    with pytest.raises(OnwardError, match=r"the metric own \(Own\) cannot be put together.*a method merge"):
        Own("own").merge([])

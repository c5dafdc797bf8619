"""The metrics by their names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from onward.errors import OnwardError, UnknownNameError
from onward.metrics.base import Metric, Output
from onward.metrics.classification import AVERAGES, F1, Accuracy, BalancedAccuracy, Precision, Recall, ScoreMetric, TopK
from onward.metrics.decoding import Reading
from onward.metrics.function import FunctionMetric
from onward.metrics.likelihood import LogLoss, Perplexity
from onward.metrics.ranking import AUC
from onward.metrics.regression import MAE, MAPE, MSE, R2, RMSE

_OF_SCORES: dict[str, type[ScoreMetric]] = {
    "accuracy": Accuracy,
    "top_k": TopK,
    "balanced_accuracy": BalancedAccuracy,
    "precision": Precision,
    "recall": Recall,
    "f1": F1,
    "auc": AUC,
    "log_loss": LogLoss,
    "perplexity": Perplexity,
}
_OF_NUMBERS: dict[str, type[Metric]] = {"mae": MAE, "mse": MSE, "rmse": RMSE, "mape": MAPE, "r2": R2}
_OTHER_NAMES = {"top_k_accuracy": "top_k", "roc_auc": "auc", "acc": "accuracy"}
_AVERAGED = ("f1", "precision", "recall")
_TOP = re.compile(r"top_?(\d+)(_accuracy)?")

MetricLike = str | Metric | Callable[..., Any]


def get(
    metric: MetricLike,
    *,
    output: Output | str = Output.LOGITS,
    ignore_index: int | None = -100,
    class_axis: int | None = None,
    **options: Any,
) -> Metric:
    """A metric of that name, or of a function ``(prediction, target)`` or ``(prediction, target, sample_weight)``.

    Args:
        metric: one of `names()`, "top_5" and the like, "f1_macro" and the like; a Metric is returned as it is.
        output: what the predictions are; `output_of` says it of a loss.
        ignore_index: labels that do not count.
        class_axis: the axis of classes in predictions; None means axis 1, or the last one where only that fits.
        options: `k` of top_k, `average` of f1, precision and recall.
    """
    if isinstance(metric, str):
        name, kind, found = _parsed(metric)
        reading = Reading(Output(output), ignore_index, class_axis)
        arguments = [metric, reading] if issubclass(kind, ScoreMetric) else [metric]
        try:
            return kind(*arguments, **{**found, **options})
        except TypeError as error:
            raise OnwardError(f"the metric {name} does not take these options: {options} ({error})") from error
    if options:
        raise OnwardError(f"{', '.join(options)} is for metrics that are named, not for {metric!r}")
    if _is_metric(metric):
        return metric  # type: ignore[return-value]
    if callable(metric) and not isinstance(metric, type):
        return FunctionMetric(metric)
    raise OnwardError(f"a metric is a name ({', '.join(names())}) or a function (prediction, target), not {metric!r}")


def get_all(metrics: MetricLike | Iterable[MetricLike] | Mapping[str, MetricLike], **options: Any) -> list[Metric]:
    """Several metrics, each under a name of its own; a mapping gives them names."""
    if isinstance(metrics, Mapping):
        found = []
        for name, metric in metrics.items():
            found.append(get(metric, **options))
            found[-1].name = str(name)
    elif isinstance(metrics, Iterable) and not isinstance(metrics, str):
        found = [get(metric, **options) for metric in metrics]
    else:
        found = [get(metrics, **options)]
    twice = {metric.name for metric in found if [other.name for other in found].count(metric.name) > 1}
    if twice:
        raise OnwardError(f"two metrics have the name {min(twice)!r}; give them names: metrics={{'name': metric, ...}}")
    return found


def names() -> list[str]:
    """The names that `get` knows, besides those with a number or an average in them."""
    return sorted([*_OF_SCORES, *_OF_NUMBERS])


def _parsed(text: str) -> tuple[str, type[Metric], dict[str, Any]]:
    """What a name stands for, and the options that are in it."""
    top = _TOP.fullmatch(text)
    if top is not None:
        return "top_k", TopK, {"k": int(top[1])}
    base, _, average = text.rpartition("_")
    if base in _AVERAGED and average in AVERAGES:
        return base, _OF_SCORES[base], {"average": average}
    name = _OTHER_NAMES.get(text, text)
    kind = _OF_SCORES.get(name) or _OF_NUMBERS.get(name)
    if kind is None:
        near = difflib.get_close_matches(text, names(), n=1)
        meant = f"; is {near[0]!r} meant?" if near else ""
        raise UnknownNameError(
            f"there is no metric {text!r}; there are {', '.join(names())}, or write a function (prediction, target)"
            f"{meant}"
        )
    return name, kind, {}


def _is_metric(value: Any) -> bool:
    return all(hasattr(value, name) for name in ("name", "start", "update", "result")) and not isinstance(value, type)

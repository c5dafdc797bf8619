"""Metrics, and what they compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from onward import metrics
from onward.errors import OnwardError, UnknownNameError
from onward.graph.naming import quoted
from onward.losses import Loss
from onward.losses.base import loss_name, options_of
from onward.metrics import Metric
from onward.trainer.trained import TrainedModel

# What an epoch has anyway.
_TAKEN = ("epoch", "loss", "rate", "seconds", "step")


class Comparison(NamedTuple):
    """A metric, and the output and the target that it compares."""

    metric: Metric
    output: str
    target: str


def comparisons(model: TrainedModel, loss: Loss | None, given: Any) -> list[Comparison]:
    """What `given` means for a model that is trained with this loss: metrics, a list or a dict of them."""
    if not given:
        return []
    outputs, targets = model.comparable(), list(model.targets.values())
    if loss is None or not targets:
        raise OnwardError("metrics compare a prediction with a target, which a model that is its own loss has not")
    pairs: dict[str, tuple[str, str]] = {}
    if isinstance(given, Mapping):
        pairs = {str(name): _pair(value, outputs, targets) for name, value in given.items()}
        given = {name: value[0] if isinstance(value, tuple) else value for name, value in given.items()}
    kind = metrics.output_of(loss_name(loss), model.activation)
    found = metrics.get_all(given, output=kind, ignore_index=options_of(loss).get("ignore_index"))
    for metric in found:
        if metric.name in _TAKEN:
            raise OnwardError(
                f"a metric cannot be called {metric.name!r}, which every epoch has; give it another name: "
                "metrics={'name': metric}"
            )
    return [Comparison(metric, *pairs.get(metric.name, (outputs[0], targets[0]))) for metric in found]


def _pair(value: Any, outputs: Sequence[str], targets: Sequence[str]) -> tuple[str, str]:
    """The output and the target that a metric compares: those that are named after it, or the first ones."""
    named = list(value[1:]) if isinstance(value, tuple) else []
    if len(named) > 2:
        raise OnwardError(f"a metric with what it compares is (metric, output, target), not {value!r}")
    chosen = [*named, *(outputs[0], targets[0])[len(named) :]]
    for name, known, what in ((chosen[0], outputs, "output"), (chosen[1], targets, "target")):
        if name not in known:
            raise UnknownNameError(f"a metric cannot look at the {what} {name!r}; there are {quoted(known)}")
    return chosen[0], chosen[1]

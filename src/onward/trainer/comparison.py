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
    """A metric, the output that it looks at, and the target or input that it compares it with."""

    metric: Metric
    output: str
    target: str


def comparisons(model: TrainedModel, loss: Loss | None, given: Any) -> list[Comparison]:
    """What `given` means for a model that is trained with this loss: metrics, a list or a dict of them."""
    if not given:
        return []
    outputs, targets = model.comparable(), list(model.targets.values())
    pairs: dict[str, tuple[str, str]] = {}
    if isinstance(given, Mapping):
        pairs = {str(name): _pair(value, outputs, targets, model.inputs) for name, value in given.items()}
        given = {name: value[0] if isinstance(value, tuple) else value for name, value in given.items()}
    elif not (outputs and targets):
        raise _nothing_to_compare(outputs)
    kind = metrics.output_of("" if loss is None else loss_name(loss), model.activation)
    ignored = None if loss is None else options_of(loss).get("ignore_index")
    found = metrics.get_all(given, output=kind, ignore_index=ignored)
    for metric in found:
        if metric.name in _TAKEN:
            raise OnwardError(
                f"a metric cannot be called {metric.name!r}, which every epoch has; give it another name: "
                "metrics={'name': metric}"
            )
    return [Comparison(metric, *(pairs.get(metric.name) or (outputs[0], targets[0]))) for metric in found]


def _pair(value: Any, outputs: Sequence[str], targets: Sequence[str], inputs: Sequence[str]) -> tuple[str, str]:
    """What a metric compares: the output and the target (or input) that are named after it, or the first ones."""
    named = list(value[1:]) if isinstance(value, tuple) else []
    if len(named) > 2:
        raise OnwardError(f"a metric with what it compares is (metric, output, target), not {value!r}")
    if len(named) < 2 and not (outputs and targets):
        raise _nothing_to_compare(outputs)
    chosen = [*named, *(*outputs[:1], *targets[:1])[len(named) :]]
    for name, known, what in ((chosen[0], outputs, "output"), (chosen[1], [*targets, *inputs], "target")):
        if name not in known:
            raise UnknownNameError(f"a metric cannot look at the {what} {name!r}; there are {quoted(known) or 'none'}")
    return chosen[0], chosen[1]


def _nothing_to_compare(outputs: Sequence[str]) -> OnwardError:
    example = f"metrics={{'accuracy': ('accuracy', {outputs[0] if outputs else '...'!r}, 'labels')}}"
    return OnwardError(
        "metrics compare a prediction with a target, and it is not known which these are: the loss has no targets, "
        f"because the model is its own loss, or takes none. Name an output and an input: {example}"
    )

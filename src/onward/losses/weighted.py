"""Any loss with a weight for each row: the weighted mean sum(w l) / sum(w), as class weights have it in torch."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.graph.guard import guarded, positive
from onward.graph.shapes import dims
from onward.losses.base import (
    Loss,
    declared_signature,
    loss_name,
    loss_signature,
    match,
    options_of,
    reduce,
    with_signature,
)
from onward.losses.target import TargetKind
from onward.losses.terms import Terms, mean_terms

SAMPLE_WEIGHT = "sample_weight"


def weighted(loss: Loss) -> Loss:
    """`loss` with one more target, `sample_weight` `[N]`: sum(w l) / sum(w), where l is the mean of each row.

    Weights of classes and labels that are ignored count as they do without: sum(w l) / sum(w c) for their weights c.
    With all weights alike it is the loss as it was. Where all weights are 0 it is 0, and so are its gradients.

    The loss has the option `reduction`, and `reduction="none"` returns a value for each row. A loss whose targets are
    not declared (`onward.losses.targets`) has one prediction.
    """
    declared, options = declared_signature(loss), options_of(loss)
    signature = declared or loss_signature(loss)
    predictions, targets = signature.predictions, signature.targets
    if SAMPLE_WEIGHT in (*predictions, *targets):
        raise OnwardError(f"the loss {loss_name(loss)} takes {SAMPLE_WEIGHT!r} already")
    reduction = _reduction(loss)
    mean = mean_terms(_function(loss))

    def weighted_loss(op: Builder, **values: ir.Value) -> ir.Value:
        weight = values.pop(SAMPLE_WEIGHT)
        if declared is None:
            values.update(match(op, loss, values, predictions, targets, options))
        rows = functools.partial(loss, reduction="none")(op, **values)
        _check_rows(loss, rows)
        terms = mean.terms(op, rows, **{**options, **values})
        weight = _matched(op, weight, rows, values[predictions[0]])
        return _sum(op, terms, weight) if reduction == "sum" else _mean(op, terms, weight, reduction)

    weighted_loss.__name__ = weighted_loss.__qualname__ = loss_name(loss)
    kinds = {name: _with_options(kind, options) for name, kind in {**targets, SAMPLE_WEIGHT: mean.samples}.items()}
    return with_signature(weighted_loss, predictions, kinds)


def _function(loss: Loss) -> Loss:
    return _function(loss.func) if isinstance(loss, functools.partial) else loss


def _reduction(loss: Loss) -> str:
    """How the weighted rows are put together; an error for a loss that has none."""
    parameter = inspect.signature(_function(loss)).parameters.get("reduction")
    if parameter is None:
        raise OnwardError(
            f"the loss {loss_name(loss)} cannot be weighted: it has no option `reduction`, so no row has a loss of its "
            "own. Give it one, and return a value for each row for reduction='none' (onward.losses.reduce does so)."
        )
    chosen = options_of(loss).get("reduction", parameter.default)
    if chosen not in ("mean", "sum", "batchmean"):
        raise OnwardError(f"the loss {loss_name(loss)} has reduction={chosen!r}; with weights it is 'mean' or 'sum'")
    return chosen


def _with_options(kind: TargetKind, options: Mapping[str, Any]) -> TargetKind:
    """A kind of target that knows the options of its loss by itself."""
    asked = {name: options[name] for name in inspect.signature(kind).parameters if name in options}
    return functools.partial(kind, **asked) if asked else kind


def _check_rows(loss: Loss, rows: Any) -> None:
    if not isinstance(rows, ir.Value) or (rows.shape is not None and len(rows.shape) == 0):
        found = f"shape {rows.shape}" if isinstance(rows, ir.Value) else f"type {type(rows).__name__}"
        raise OnwardError(
            f"the loss {loss_name(loss)} cannot be weighted: for reduction='none' it returned a value of {found}, not "
            "one for each row"
        )


def _matched(op: Builder, weight: ir.Value, rows: ir.Value, prediction: ir.Value) -> ir.Value:
    """The weights, which must be as many as the rows: a single one would be broadcast."""
    known = (dims(rows) or (None,))[0], (dims(weight) or (None,))[0]
    if all(isinstance(size, int) for size in known) and known[0] != known[1]:
        raise OnwardError(f"{SAMPLE_WEIGHT!r} has {known[1]} elements, but {prediction.name!r} has {known[0]} rows")
    rule = f"{SAMPLE_WEIGHT!r} must have one number for each row of {prediction.name!r}, and there must be a row"
    return guarded(op, weight, positive(op, op.dim(rows, 0)), rule, exact=False)


def _sum(op: Builder, terms: Terms, weight: ir.Value) -> ir.Value:
    return reduce(op, weight * _row_sums(op, terms.rows), "sum")


def _mean(op: Builder, terms: Terms, weight: ir.Value, reduction: str) -> ir.Value:
    """The weighted sum over that of the weights; 0 where that is 0."""
    if terms.shares is not None:
        total = reduce(op, weight * _row_sums(op, terms.shares), "sum")
        rows = _row_sums(op, terms.rows)
    else:
        total = reduce(op, weight, "sum")
        rows = _row_sums(op, terms.rows) if reduction == "batchmean" else _row_means(op, terms.rows)
    return reduce(op, weight * rows, "sum") / op.Where(op.Equal(total, 0), 1, total)


def _row_sums(op: Builder, rows: ir.Value) -> ir.Value:
    rows, axes = _inner_axes(op, rows)
    return op.ReduceSum(rows, axes, keepdims=0) if axes else rows


def _row_means(op: Builder, rows: ir.Value) -> ir.Value:
    rows, axes = _inner_axes(op, rows)
    return op.ReduceMean(rows, axes, keepdims=0) if axes else rows


def _inner_axes(op: Builder, rows: ir.Value) -> tuple[ir.Value, list[int]]:
    """All axes but the first; of a value of unknown rank they are one."""
    if rows.shape is None:
        return op.Flatten(rows, axis=1), [1]
    return rows, list(range(1, len(rows.shape)))

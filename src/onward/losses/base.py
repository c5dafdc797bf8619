"""What a loss is: a function of the builder and of values, ``(op, prediction, *targets, **options) -> ir.Value``.

Any Python function of that form is a loss; it is called while `op` is active (`with op:`). Which of its parameters are
targets, and what these look like, is said by a decorator, which sees to it that they do::

    @targets(labels=class_indices)
    def cross_entropy(op, prediction, labels, *, reduction="mean"): ...

Without it, the first parameters are the predictions and the others are targets like the first prediction.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
import onnx_ir as ir

from onward.errors import NotDifferentiableError, OnwardError
from onward.graph.builder import Builder
from onward.graph.shapes import is_floating
from onward.graph.tracing import traced
from onward.losses.activation import warn_of_activation
from onward.losses.target import TargetKind, declare, like_prediction, matched, not_empty

Loss = Callable[..., ir.Value]
Weights = ir.Value | np.ndarray | Sequence[float] | float

F = TypeVar("F", bound=Loss)
_SIGNATURE = "onward_loss_signature"


@dataclass(frozen=True)
class LossSignature:
    """The names of the parameters of a loss that are values, in the order of the function."""

    predictions: tuple[str, ...]
    targets: Mapping[str, TargetKind]


def targets(**kinds: TargetKind) -> Callable[[F], F]:
    """Say which parameters of a loss are targets, and what they look like; all others are predictions."""

    def attach(loss: F) -> F:
        names = _positional(loss)
        unknown = [name for name in kinds if name not in names]
        if unknown:
            raise OnwardError(f"@targets names {unknown}, but {loss_name(loss)} has the parameters {names}")
        wrong = [name for name, kind in kinds.items() if not callable(kind)]
        if wrong:
            raise OnwardError(f"@targets of {loss_name(loss)}: {wrong} must be functions of the predictions")
        predictions = tuple(name for name in names if name not in kinds)
        parameters = inspect.signature(loss)

        @functools.wraps(loss)
        def checked(op: Builder, *args: Any, **kwargs: Any) -> ir.Value:
            try:
                bound = parameters.bind(op, *args, **kwargs)
            except TypeError as error:
                raise OnwardError(f"{loss_name(loss)}{parameters} was called with other arguments: {error}") from error
            bound.apply_defaults()
            bound.arguments.update(match(op, loss, bound.arguments, predictions, kinds, bound.kwargs))
            return loss(*bound.args, **bound.kwargs)

        return cast(F, with_signature(checked, predictions, kinds))

    return attach


def match(
    op: Builder,
    loss: Loss,
    values: Mapping[str, Any],
    predictions: Sequence[str],
    kinds: Mapping[str, TargetKind],
    options: Mapping[str, Any],
) -> dict[str, ir.Value]:
    """The targets among the arguments of a loss, checked; without any, the first prediction."""
    given = [values[name] for name in predictions]
    for name, value in zip(predictions, given, strict=True):
        if not isinstance(value, ir.Value):
            raise OnwardError(
                f"{name!r} of the loss {loss_name(loss)} is {type(value).__name__}, not a value of a graph"
            )
        if value.dtype is not None and not is_floating(value):
            raise NotDifferentiableError(
                f"the loss {loss_name(loss)} has no derivative: {value.name!r} is {value.dtype}. Give it a value of "
                "floating point, such as the scores that labels are chosen by: `loss_input_names` (`loss_inputs` in "
                "onward.training_step) says which."
            )
    warn_of_activation(loss_name(loss), given[0])
    with op:
        found = {
            name: matched(op, name, values[name], kind, given, options)
            for name, kind in kinds.items()
            if isinstance(values[name], ir.Value)  # it may be bound to a number
        }
        return found or {predictions[0]: not_empty(op, given[0], options)}


def with_signature(loss: F, predictions: Sequence[str], kinds: Mapping[str, TargetKind]) -> F:
    """Attach the names of predictions and targets to a loss, and return it."""
    setattr(loss, _SIGNATURE, LossSignature(tuple(predictions), dict(kinds)))
    return loss


def loss_signature(loss: Loss, predictions: int = 1) -> LossSignature:
    """The predictions and targets of a loss, also of one whose options are set with functools.partial."""
    found = declared_signature(loss)
    if found is None:
        names = _positional(loss)
        found = LossSignature(tuple(names[:predictions]), dict.fromkeys(names[predictions:], like_prediction))
    if len(found.predictions) != predictions:
        raise OnwardError(
            f"the loss {loss_name(loss)} takes {len(found.predictions)} predictions "
            f"({', '.join(found.predictions)}), but {predictions} were given"
        )
    return found


def declared_signature(loss: Loss) -> LossSignature | None:
    """What `@targets` said about a loss; None where it said nothing."""
    if not isinstance(loss, functools.partial):
        return getattr(loss, _SIGNATURE, None)
    whole = declared_signature(loss.func)
    if whole is None:
        return None
    kinds = {name: kind for name, kind in whole.targets.items() if name not in loss.keywords}
    return LossSignature(tuple(name for name in whole.predictions if name not in loss.keywords), kinds)


def target_inputs(loss: Loss, predictions: Sequence[ir.Value]) -> dict[str, ir.Value]:
    """Fresh values for the targets of a loss, by parameter name; they are in no graph yet."""
    inputs, options = {}, options_of(loss)
    for name, kind in loss_signature(loss, len(predictions)).targets.items():
        inputs[name] = declare(kind, predictions, options).value
        inputs[name].name = name
    return inputs


def prediction_count(loss: Loss) -> int | None:
    """How many predictions a loss takes; None for one that does not say."""
    declared = declared_signature(loss)
    return None if declared is None else len(declared.predictions)


def apply(op: Builder, loss: Loss, predictions: Sequence[ir.Value], targets: Mapping[str, ir.Value]) -> ir.Value:
    """Emit a loss, its values bound by the names of its parameters."""
    signature = loss_signature(loss, len(predictions))
    values = {**dict(zip(signature.predictions, predictions, strict=True)), **targets}
    last = op.graph[-1] if len(op.graph) else None
    with op, op.scope("loss"):
        if declared_signature(loss) is None:
            values.update(match(op, loss, values, signature.predictions, signature.targets, options_of(loss)))
        with traced(f"the loss {loss_name(loss)}"):
            result = loss(op, **values)
    _check_result(op, loss, result, last)
    return result


def _check_result(op: Builder, loss: Loss, result: Any, last: ir.Node | None) -> None:
    """See that a loss returned a value, and used no others than those of the graph; `last` was there before."""
    if not isinstance(result, ir.Value):
        raise OnwardError(
            f"the loss {loss_name(loss)} returned {type(result).__name__}; a loss returns one value, which operators "
            "make: `return op.ReduceMean(op.Abs(prediction - target), keepdims=0)`"
        )
    emitted = list(itertools.takewhile(lambda node: node is not last, reversed(op.graph)))
    foreign = [
        value
        for value in (result, *(value for node in emitted for value in node.inputs))
        if value is not None and value.graph is not op.graph
    ]
    if foreign:
        raise OnwardError(
            f"the loss {loss_name(loss)} uses the value {foreign[0].name!r}, which is not in the graph that it is put "
            "into; use its parameters, and make constants with op.constant(...)"
        )


def options_of(loss: Loss) -> dict[str, Any]:
    """The options that functools.partial has set."""
    return {**options_of(loss.func), **loss.keywords} if isinstance(loss, functools.partial) else {}


def loss_name(loss: Loss) -> str:
    """How errors call a loss."""
    if isinstance(loss, functools.partial):
        return loss_name(loss.func)
    return getattr(loss, "__name__", None) or repr(loss)


def _positional(loss: Loss) -> list[str]:
    """The parameters after `op` that are values: positional ones without a default."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [
        parameter.name
        for parameter in inspect.signature(loss).parameters.values()
        if parameter.kind in kinds and parameter.default is inspect.Parameter.empty
    ]
    if len(names) < 2:
        raise OnwardError(
            f"{loss_name(loss)} is not a loss: a loss is a function (op, prediction, *targets), with the predictions "
            "and targets as positional parameters without defaults"
        )
    return names[1:]


# Reductions ---------------------------------------------------------------------------------------------------------

REDUCTIONS = ("mean", "sum", "none")


def check_reduction(reduction: Any, known: Sequence[str] = REDUCTIONS) -> None:
    if reduction not in known:
        raise OnwardError(f"reduction={reduction!r} is not known; use one of {', '.join(map(repr, known))}")


def reduce(op: Builder, x: ir.Value, reduction: str) -> ir.Value:
    """The mean or sum of all elements as a scalar, or `x` as it is."""
    check_reduction(reduction)
    if reduction == "none":
        return x
    return op.ReduceMean(x, keepdims=0) if reduction == "mean" else op.ReduceSum(x, keepdims=0)


# Stable functions ---------------------------------------------------------------------------------------------------


def softplus(op: Builder, x: ir.Value) -> ir.Value:
    """log(1 + exp(x)), finite for all x.

    onnxruntime has a kernel for float only; in the other types it computes the formula as it stands, which overflows.
    """
    if x.dtype == ir.DataType.FLOAT:
        return op.Softplus(x)
    straight = 10.0 if x.dtype == ir.DataType.FLOAT16 else 37.0  # where exp is finite and adding 1 changes nothing
    return op.Where(op.Greater(x, straight), x, op.Log(op.Exp(op.Min(x, straight)) + 1))

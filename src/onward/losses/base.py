"""What a loss is: a function of the builder and of values, ``(op, prediction, *targets, **options) -> ir.Value``.

Any Python function of that form is a loss; it is called while `op` is active (`with op:`). Which of its parameters are
targets, and what these look like, is said by a decorator that leaves the function as it is::

    @targets(labels=class_indices)
    def cross_entropy(op, prediction, labels, *, reduction="mean"): ...

Without it, the first parameters are the predictions and the others are targets like the first prediction.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir

from onward.errors import OnwardError
from onward.graph.builder import Builder

Loss = Callable[..., ir.Value]
# From the predictions to a fresh value without a name. Keyword parameters of a kind are options of its loss.
TargetKind = Callable[..., ir.Value]
Weights = ir.Value | np.ndarray | Sequence[float] | float

F = TypeVar("F", bound=Loss)
_SIGNATURE = "onward_loss_signature"
_NO_CLASS = -(2**31)


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
        return with_signature(loss, tuple(name for name in names if name not in kinds), kinds)

    return attach


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
    inputs, options = {}, _options(loss)
    for name, kind in loss_signature(loss, len(predictions)).targets.items():
        asked = inspect.signature(kind).parameters
        inputs[name] = kind(predictions, **{key: value for key, value in options.items() if key in asked})
        inputs[name].name = name
    return inputs


def apply(op: Builder, loss: Loss, predictions: Sequence[ir.Value], targets: Mapping[str, ir.Value]) -> ir.Value:
    """Emit a loss, its values bound by the names of its parameters."""
    names = loss_signature(loss, len(predictions)).predictions
    with op, op.scope("loss"):
        result = loss(op, **dict(zip(names, predictions, strict=True)), **targets)
    if not isinstance(result, ir.Value):
        raise OnwardError(f"the loss {loss_name(loss)} returned {type(result).__name__}; a loss returns one ir.Value")
    return result


def _options(loss: Loss) -> dict[str, Any]:
    """The options that functools.partial has set."""
    return {**_options(loss.func), **loss.keywords} if isinstance(loss, functools.partial) else {}


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


# What targets look like ---------------------------------------------------------------------------------------------


def like_prediction(predictions: Sequence[ir.Value]) -> ir.Value:
    """A target of the type and shape of the first prediction."""
    return _fresh(predictions[0].dtype, predictions[0].shape)


def class_indices(predictions: Sequence[ir.Value]) -> ir.Value:
    """Labels of scores `[N, C, d1, ...]`: int64 `[N, d1, ...]`, a scalar for scores `[C]`."""
    return _fresh(ir.DataType.INT64, _without_class_axis(predictions[0]))


def one_per_row(predictions: Sequence[ir.Value]) -> ir.Value:
    """A number for each row of `[N, C, d1, ...]`: `[N, d1, ...]` in the type of the prediction."""
    return _fresh(predictions[0].dtype, _without_class_axis(predictions[0]))


def class_axis(x: ir.Value) -> int:
    """1, or 0 where there is only one axis, as in torch."""
    return 0 if x.shape is not None and len(x.shape) == 1 else 1


def _without_class_axis(x: ir.Value) -> ir.Shape | None:
    if x.shape is None:
        return None
    return ir.Shape([dim for axis, dim in enumerate(x.shape) if axis != class_axis(x)])


def _fresh(dtype: ir.DataType | None, shape: ir.Shape | None) -> ir.Value:
    if dtype is None:
        raise OnwardError("the type of the prediction is unknown, so the targets of the loss cannot be given a type")
    return ir.Value(name=None, type=ir.TensorType(dtype), shape=None if shape is None else shape.copy())


def checked_labels(op: Builder, labels: ir.Value, ignore_index: int | None = None) -> ir.Value:
    """Labels, the negative ones among them (unless that is `ignore_index`) as indices that every operator refuses.

    Operators that gather take -1 for the last class; only what is beyond all classes, they report.
    """
    wrong = op.Less(labels, 0)
    if ignore_index is not None and ignore_index < 0:
        wrong = op.And(wrong, op.Not(op.Equal(labels, ignore_index)))
    checked = op.Where(wrong, _NO_CLASS, labels)
    checked.shape = labels.shape
    return checked


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

"""What targets look like, and the check that they do.

A kind of target is a function of the predictions that returns a fresh value. Which axes of which predictions it takes
its sizes from is found out by asking it about predictions whose sizes are names; the graph compares those sizes at run
time. The names of dimensions in a file do not do that: they may be missing, differ, or be used for two sizes, and
onnxruntime broadcasts a target of one row, or reads beyond its end.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.graph.guard import guarded, guarded_all, positive
from onward.graph.shapes import Dim, dims, is_placeholder, static_shape
from onward.graph.tracing import traced
from onward.graph.width import is_narrow, whole
from onward.signature import CHECK

# From the predictions to a fresh value without a name. Keyword parameters of a kind are options of its loss.
TargetKind = Callable[..., ir.Value]
Axis = tuple[int, int]  # the number of a prediction, and of an axis of it
Origin = Axis | int | None  # of a size: that of a prediction, a number, or the target's own

_NO_CLASS = -(2**31)
_ALL_AXES = 2**31 - 1
# Between what the caller feeds and what a loss takes.
_TRANSPARENT = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")


def like_prediction(predictions: Sequence[ir.Value]) -> ir.Value:
    """A target of the type and shape of the first prediction."""
    return _fresh(predictions[0].dtype, predictions[0].shape)


def class_indices(predictions: Sequence[ir.Value]) -> ir.Value:
    """Labels of scores `[N, C, d1, ...]`: integers `[N, d1, ...]`, a scalar for scores `[C]`."""
    return _fresh(whole(), _without_class_axis(predictions[0]))


def one_per_row(predictions: Sequence[ir.Value]) -> ir.Value:
    """A number for each row of `[N, C, d1, ...]`: `[N, d1, ...]` in the type of the prediction."""
    return _fresh(predictions[0].dtype, _without_class_axis(predictions[0]))


def one_per_sample(predictions: Sequence[ir.Value]) -> ir.Value:
    """A number for each sample, along the first axis: `[N]` in the type of the prediction."""
    first = predictions[0]
    return _fresh(first.dtype, ir.Shape([None] if first.shape is None else list(first.shape)[:1]))


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


# Where its sizes come from -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """What a kind of target is for certain predictions."""

    value: ir.Value  # fresh, of the declared type and shape
    origins: Sequence[Origin] | None  # of each size; None without a rank


def declare(kind: TargetKind, predictions: Sequence[ir.Value], options: Mapping[str, Any]) -> Target:
    """The target of these predictions."""
    asked = inspect.signature(kind).parameters
    axes: dict[str, Axis] = {}
    probes = [_probe(prediction, index, axes) for index, prediction in enumerate(predictions)]
    with traced(f"the kind of target {getattr(kind, '__name__', kind)}"):
        value = kind(probes, **{key: option for key, option in options.items() if key in asked})
    if not isinstance(value, ir.Value):
        raise OnwardError(
            f"the kind of target {getattr(kind, '__name__', kind)} returned {type(value).__name__}; it takes the "
            "predictions and returns a fresh ir.Value of the type and shape of the target"
        )
    found = dims(value)
    if found is None:
        return Target(value, None)
    origins = [axes.get(dim) if isinstance(dim, str) else dim for dim in found]
    value.shape = ir.Shape(
        [_size(predictions[o[0]], o[1]) if isinstance(o, tuple) else d for d, o in zip(found, origins, strict=True)]
    )
    return Target(value, origins)


def _probe(prediction: ir.Value, index: int, axes: dict[str, Axis]) -> ir.Value:
    """A copy of a prediction whose unknown sizes have names that say where they are from."""
    known = dims(prediction)
    shape = None
    if known is not None:
        names = {axis: f"onward/{index}/{axis}" for axis, dim in enumerate(known) if not isinstance(dim, int)}
        axes.update({name: (index, axis) for axis, name in names.items()})
        shape = ir.Shape([names.get(axis, dim) for axis, dim in enumerate(known)])
    return ir.Value(name=prediction.name, type=prediction.type, shape=shape)


def _size(prediction: ir.Value, axis: int) -> Dim:
    size = (dims(prediction) or ())[axis]
    # What inference calls an unknown dimension means nothing in another run of it.
    return None if is_placeholder(size) else size


# The check -----------------------------------------------------------------------------------------------------------


def matched(
    op: Builder,
    name: str,
    given: ir.Value,
    kind: TargetKind,
    predictions: Sequence[ir.Value],
    options: Mapping[str, Any],
) -> ir.Value:
    """A target that has the sizes it should have, or an error: now, as far as they are known, and else at run time."""
    target = declare(kind, predictions, options)
    filled = not _may_be_empty(options)
    wanted = " and must not be empty" if filled else ""
    name = _origin(given).name or name
    if target.origins is None or given.shape is None:
        if kind not in _RUN_TIME_SHAPES:
            return given
        sizes = _RUN_TIME_SHAPES[kind](op, predictions[0])
        rule = f"target {name!r} must have as many elements as {predictions[0].name!r} has rows{wanted}"
        return guarded(op, given, positive(op, sizes) if filled else sizes, rule, exact=False)
    known = dims(given) or ()
    _check_known_sizes(name, known, dims(target.value) or (), filled)
    pairs = list(zip(known, target.origins, strict=True))
    open_ = [origin for size, origin in pairs if not (isinstance(size, int) and isinstance(origin, int))]
    if all(origin is None for origin in open_):
        return given
    sizes = _sizes(op, given, target.origins, predictions)
    if filled:
        sizes = positive(op, sizes) if None not in open_ else _positive_but(op, sizes, target.origins)
    rule = f"target {name!r} must have {_described(target.origins, predictions)}{wanted}"
    # Where one size is open, the number of elements tells it.
    return guarded(op, given, sizes, rule, exact=len(open_) > 1)


def not_empty(op: Builder, prediction: ir.Value, options: Mapping[str, Any]) -> ir.Value:
    """A prediction that is compared with no target, or an error where it has no elements, which have no mean."""
    if _may_be_empty(options) or static_shape(prediction) is not None:
        return prediction
    sizes = positive(op, op.Shape(prediction))
    return guarded(op, prediction, sizes, f"prediction {prediction.name!r} must not be empty", exact=False)


def _may_be_empty(options: Mapping[str, Any]) -> bool:
    """The sum of nothing is 0, which models that find nothing rely on; the mean of nothing is no number."""
    return options.get("reduction") in ("sum", "none")


def _check_known_sizes(name: str, known: Sequence[Dim], wanted: Sequence[Dim], filled: bool) -> None:
    pairs = [(a, b) for a, b in zip(known, wanted, strict=False) if isinstance(a, int) and isinstance(b, int)]
    if len(known) != len(wanted) or any(a != b for a, b in pairs):
        raise OnwardError(
            f"target {name!r} has shape {_shown(known)}, but the loss takes one of shape {_shown(wanted)}: it would be "
            "broadcast, or compared with what it does not belong to. Give it that shape; a loss of your own says what "
            "its targets are by @onward.losses.targets, and otherwise they are like the prediction."
        )
    if filled and any(a == 0 for a, _ in pairs):
        raise OnwardError(f"target {name!r} has shape {_shown(known)}: the mean of no elements is no number")


def _sizes(op: Builder, given: ir.Value, origins: Sequence[Origin], predictions: Sequence[ir.Value]) -> ir.Value:
    """The sizes that a target should have, int64 `[rank]`."""
    axes = _axes(origins, dims(predictions[0]) or ())
    if axes is not None:
        return _sizes_of(op, predictions[0], axes)
    parts = []
    for axis, origin in enumerate(origins):
        if isinstance(origin, tuple):
            parts.append(op.dim(predictions[origin[0]], origin[1]))
        else:
            parts.append(op.dim(given, axis) if origin is None else op.constant([origin], ir.DataType.INT64))
    return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=0)


def _axes(origins: Sequence[Origin], sizes: Sequence[Dim]) -> list[int] | None:
    """The axes of the first prediction that have all sizes, in their order; None if there are no such axes."""
    axes: list[int] = []
    for origin in origins:
        later = range(axes[-1] + 1 if axes else 0, len(sizes))
        matching = [axis for axis in later if origin == (0, axis) or (origin is not None and origin == sizes[axis])]
        if not matching:
            return None
        axes.append(matching[0])
    return axes


def _sizes_of(op: Builder, prediction: ir.Value, axes: Sequence[int]) -> ir.Value:
    rank = len(dims(prediction) or ())
    if list(axes) == list(range(rank)):
        return op.Shape(prediction)
    if op.opset >= 15 and list(axes) == list(range(axes[0], axes[-1] + 1)):
        return op.Shape(prediction, start=axes[0], end=axes[-1] + 1)
    return op.Gather(op.Shape(prediction), list(axes), axis=0)


def _positive_but(op: Builder, sizes: ir.Value, origins: Sequence[Origin]) -> ir.Value:
    """Sizes that are not 0, but for those of the target's own."""
    lowest = [0 if origin is None else 1 for origin in origins]
    return op.Where(op.Less(sizes, lowest), 1, sizes)


def _described(origins: Sequence[Origin], predictions: Sequence[ir.Value]) -> str:
    first = predictions[0]
    if list(origins) == [size if isinstance(size, int) else (0, axis) for axis, size in enumerate(dims(first) or ())]:
        return f"the shape of {first.name!r}"
    return f"shape [{', '.join(_described_size(origin, predictions) for origin in origins)}]"


def _described_size(origin: Origin, predictions: Sequence[ir.Value]) -> str:
    if isinstance(origin, tuple):
        return f"{predictions[origin[0]].name}.shape[{origin[1]}]"
    return "any" if origin is None else str(origin)


def _shown(sizes: Sequence[Dim]) -> str:
    return str(["?" if size is None else size for size in sizes]).replace("'", "")


def _rows(op: Builder, scores: ir.Value) -> ir.Value:
    """The shape of scores of unknown rank without the axis of the classes."""
    shape = op.Shape(scores)
    return op.Concat(op.Slice(shape, [0], [1], [0]), op.Slice(shape, [2], [_ALL_AXES], [0]), axis=0)


_RUN_TIME_SHAPES: dict[TargetKind, Callable[[Builder, ir.Value], ir.Value]] = {
    like_prediction: lambda op, prediction: op.Shape(prediction),
    class_indices: _rows,
    one_per_row: _rows,
}


def checked_labels(
    op: Builder, labels: ir.Value, scores: ir.Value, axis: int = 1, *, ignore_index: int | None = None, name: str = ""
) -> ir.Value:
    """Labels, the negative ones among them (unless that is `ignore_index`) as indices that every operator refuses.

    Operators that gather take -1 for the last class; only what is beyond all classes, they report, and say no range:
    the name of the node does.
    """
    wrong = op.Less(labels, 0)
    if ignore_index is not None and ignore_index < 0:
        wrong = op.And(wrong, op.Not(op.Equal(labels, ignore_index)))
    classes = (dims(scores) or {axis: None})[axis]
    most = str(classes - 1) if isinstance(classes, int) else f"{scores.name}.shape[{axis}] - 1"
    ignored = "" if ignore_index is None else f", or {ignore_index} to be ignored"
    rule = f"labels {(name or _origin(labels).name)!r} must be from 0 to {most}{ignored}"
    if is_narrow():  # for devices whose operators take any index
        return guarded_all(op, labels, op.Or(wrong, _beyond(op, labels, scores, axis, ignore_index)), rule)
    checked: ir.Value = op.Where(wrong, _NO_CLASS, labels)
    checked.shape = labels.shape
    node = checked.producer()
    assert node is not None
    node.name = op.unique_name(f"{CHECK}{rule}")
    return checked


def _beyond(op: Builder, labels: ir.Value, scores: ir.Value, axis: int, ignore_index: int | None) -> ir.Value:
    """Which labels are too large to be a class."""
    assert labels.dtype is not None
    classes = (dims(scores) or {axis: None})[axis]
    count = classes if isinstance(classes, int) else op.cast(op.dim(scores, axis), labels.dtype)
    beyond = op.Not(op.Less(labels, count))
    if ignore_index is None or ignore_index < 0:
        return beyond
    return op.And(beyond, op.Not(op.Equal(labels, ignore_index)))


def _origin(value: ir.Value) -> ir.Value:
    """The value that labels are made of, which is what the caller knows."""
    producer = value.producer()
    if producer is None or producer.op_type not in _TRANSPARENT or producer.inputs[0] is None:
        return value
    return _origin(producer.inputs[0])

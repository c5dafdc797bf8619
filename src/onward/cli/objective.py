"""What a model is trained for: the loss, guessed from the labels and the output, and labels as the loss takes them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onward import losses
from onward.cli import named
from onward.cli.data.table import Column, Kind
from onward.cli.labels import Classes
from onward.cli.loss import on_last_axis, probability_loss
from onward.cli.model import ModelView, shown
from onward.cli.recipe import Recipe, Training
from onward.cli.scores import class_axis, ignored_label, require_one_place, width_of
from onward.errors import OnwardError
from onward.head.ending import PROBABILITY, SIGMOID, Head
from onward.losses import Loss

Array = np.ndarray[Any, Any]

# Losses by what their targets are: the number of a class, yes or no for each score; all others take numbers.
_OF_CLASSES = ("cross_entropy", "focal", "nll", "multi_margin")
_OF_YES_OR_NO = ("bce", "bce_with_logits", "binary_focal")
# Those that take scores, and not what an activation makes of them.
_OF_SCORES = ("cross_entropy", "focal", "multi_margin", "bce_with_logits", "binary_focal")
PROBABILITY_LOSS = "log_of_probability"  # of models that end in probabilities which no softmax makes


@dataclass(frozen=True)
class Objective:
    """A loss, the values that it takes, and how labels become its targets.

    Attributes:
        name: of the loss; None where the first output of the model is the loss.
        options: those of the loss.
        outputs: the values of the model that it takes.
        classes: the classes that labels are of.
        class_axis: the axis of scores that has the classes, if not the second.
        width: how many scores a row has.
        notes: what was guessed.
    """

    name: str | None
    outputs: list[str] | None
    classes: Classes | None = None
    class_axis: int | None = None
    ignored: int | None = None
    width: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def named(self) -> str:
        """The loss as a recipe has it."""
        said = ",".join(f"{key}={_written(value)}" for key, value in self.options.items())
        return f"{self.name}:{said}" if said else str(self.name)

    def loss(self) -> Loss | None:
        """The loss as a Trainer takes it."""
        if self.name is None:
            return None
        if self.name == PROBABILITY_LOSS:
            return probability_loss
        found, options = losses.get(self.name), dict(self.options)
        if self.ignored is not None and self.name in _OF_CLASSES:
            options.setdefault("ignore_index", self.ignored)
        if options:
            found = functools.partial(found, **options)
        return on_last_axis(found) if self.class_axis is not None else found

    def metrics(self, names: Sequence[str] | None) -> list[Any]:
        """Metrics by name, as a Trainer takes them."""
        from onward import metrics

        chosen = self.usual_metrics() if names is None else list(names)
        if self.class_axis is None:
            return chosen
        return [metrics.get(name, ignore_index=self.ignored, class_axis=self.class_axis) for name in chosen]

    def usual_metrics(self) -> list[str]:
        if self.name is None:
            return []
        if self.class_axis is not None:
            return ["accuracy", "perplexity"]
        if self.name in (*_OF_CLASSES, *_OF_YES_OR_NO, PROBABILITY_LOSS):
            return ["accuracy"]
        return ["mae", "r2"] if self.name not in ("ctc", "triplet", "cosine_embedding") else []

    def targets(self, columns: Sequence[Column]) -> Array:
        """Labels as the loss takes them."""
        array = beside(columns)
        if self.classes is not None:
            array = self.classes.numbers(columns[0])
        if self.name in _OF_YES_OR_NO:
            if self.classes is not None and self.width is not None and self.width > 1:
                array = np.eye(self.width, dtype=np.float32)[array]
            return array.astype(np.float32)
        if self.name in _OF_CLASSES or self.name == PROBABILITY_LOSS:
            return array.astype(np.int64)
        return array


def takes_numbers(loss: str | None, columns: Sequence[Column]) -> bool:
    """Whether labels are learned as numbers, and not as classes: as the loss says, or as they look."""
    if loss is not None:
        return loss not in (*_OF_CLASSES, *_OF_YES_OR_NO, PROBABILITY_LOSS)
    return len(columns) > 1 or (columns[0].kind is Kind.NUMBER and not columns[0].is_integer)


def beside(columns: Sequence[Column]) -> Array:
    """Columns of labels as one array."""
    if len(columns) == 1:
        return columns[0].values
    texts = [column.name for column in columns if column.kind is not Kind.NUMBER]
    if texts:
        raise OnwardError(
            f"of several labels, each is a number, but {texts[0]!r} is {columns[0].type_name}; name one label"
        )
    return np.stack([column.values for column in columns], axis=1)


def resolved(recipe: Recipe) -> Objective:
    """The objective of a recipe that leaves nothing open."""
    wanted = recipe.training
    assert wanted.loss is not None
    name, options = named.parse(wanted.loss)
    if name == "none":
        return Objective(None, None)
    classes = None if recipe.data.classes is None else Classes(recipe.data.classes)
    return Objective(name, wanted.outputs, classes, wanted.class_axis, wanted.ignore_label, None, options)


def decide(
    view: ModelView, columns: Sequence[Column], wanted: Training, classes: Sequence[str | int] | None
) -> Objective:
    """The loss that was asked for, or the one that labels and output suggest."""
    name, options = named.parse(wanted.loss) if wanted.loss is not None else (None, {})
    output = wanted.outputs[0] if wanted.outputs else None
    if name == "none" or (name is None and not columns):
        return _own(view, name)
    if name is not None and name != PROBABILITY_LOSS:
        losses.get(name)  # an error, if there is none of that name
    if not columns:
        raise OnwardError("the loss needs labels, but the data has no column that looks like them: --label NAME")
    names = [column.name for column in columns]
    said = f"label {', '.join(map(repr, names))}"
    head = _ending(view, output, columns)
    notes: list[str] = []
    if name is None:
        name = _guessed(head, columns)
        if name == "cross_entropy" and head.link == PROBABILITY:
            name = PROBABILITY_LOSS
        notes.append(f"loss {name}, guessed from {said} and output {head.end!r} (--loss names another)")
    return _objective(view, head, name, columns, wanted, classes, notes, options)


def _objective(
    view: ModelView,
    head: Head,
    name: str,
    columns: Sequence[Column],
    wanted: Training,
    given: Sequence[str | int] | None,
    notes: list[str],
    options: Mapping[str, Any],
) -> Objective:
    value = head.scores if name in _OF_SCORES else head.end
    outputs = wanted.outputs or [value]
    if not wanted.outputs and value != head.end and name in _OF_SCORES:
        notes.append(f"the loss takes {value!r}, from which {head.end!r} is made (--output names another)")
    axis = class_axis(view, outputs[0], columns, wanted) if name in _OF_CLASSES else None
    if name in (*_OF_CLASSES, PROBABILITY_LOSS):
        require_one_place(view, outputs[0], axis, columns)
    width = width_of(view, outputs[0], axis)
    ignored = ignored_label(columns, wanted) if name in _OF_CLASSES else None
    classes = None
    is_class = name in (*_OF_CLASSES, PROBABILITY_LOSS) or (name in _OF_YES_OR_NO and len(columns) == 1)
    if is_class and columns[0].kind in (Kind.TEXT, Kind.NUMBER):
        count = 2 if name in _OF_YES_OR_NO and width == 1 else width
        classes = Classes.of(columns[0], count, given, view.classes, notes)
    elif columns[0].kind is Kind.TEXT:
        raise OnwardError(f"label {columns[0].name!r} is text, but the loss {name} takes numbers; --loss cross_entropy")
    return Objective(name, outputs, classes, axis, ignored, width, options, notes)


def _own(view: ModelView, name: str | None) -> Objective:
    """A model whose first output is its loss."""
    first, shape = next(iter(view.outputs)), view.shape(next(iter(view.outputs)))
    if name is None and shape not in ((), (1,)):
        raise OnwardError(
            "the data has no column that looks like labels; name it: --label NAME. (--loss none is for models whose "
            "first output is their loss)"
        )
    notes = [f"output {first!r} is a single number, and taken for the loss"] if name is None else []
    return Objective(None, None, notes=notes)


def _ending(view: ModelView, output: str | None, columns: Sequence[Column]) -> Head:
    label = columns[0]
    numbers = label.kind is Kind.NUMBER and not label.is_integer
    return view.numbers(output) if numbers or len(columns) > 1 else view.ending(output)


def _guessed(head: Head, columns: Sequence[Column]) -> str:
    """The loss that a label of this kind is usually learned by."""
    label = columns[0]
    if label.kind is Kind.TEXT or label.values.dtype.kind == "b":
        return "bce_with_logits" if head.link == SIGMOID else "cross_entropy"
    if len(columns) > 1 or (label.kind is Kind.NUMBER and not label.is_integer):
        return "mse"
    if label.kind is Kind.ARRAY:
        if label.values.dtype.kind == "f":
            return "mse"
        same = label.values.ndim == head.rank and head.width == label.values.shape[1] and label.values.max() <= 1
        return "bce_with_logits" if same else "cross_entropy"
    values = np.unique(label.values[~label.missing])
    if head.link == SIGMOID and (head.width or 1) > 1:
        return "bce_with_logits"
    if head.width == 1:
        return "bce_with_logits" if set(values.tolist()) <= {0, 1} else "mse"
    return "cross_entropy"


def described(objective: Objective, view: ModelView) -> str:
    """The loss and what it compares, for people."""
    if objective.name is None:
        return f"output {next(iter(view.outputs))!r}, which is the loss"
    outputs = ", ".join(f"{name} {shown(view.shape(name))}" for name in objective.outputs or ())
    return f"{objective.name} of {outputs}"


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(map(_written, value)) if isinstance(value, (list, tuple)) else str(value)

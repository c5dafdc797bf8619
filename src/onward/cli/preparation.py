"""From a recipe, which may leave much open, to arrays for a model: everything that is guessed is written into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from onward.cli import named
from onward.cli.data import broken, missing, sequence, tokens
from onward.cli.data.division import divided
from onward.cli.data.feeding import Feed, arrays, check_given, feeds_of, is_picture
from onward.cli.data.label import assigned_with_label
from onward.cli.data.reading import read
from onward.cli.data.table import Column, Kind, Table
from onward.cli.labels import Classes
from onward.cli.model import ModelView
from onward.cli.objective import Objective, decide, takes_numbers
from onward.cli.recipe import Recipe
from onward.errors import OnwardError

Array = np.ndarray[Any, Any]
AUTO = "auto"
OPTIMIZER, OF_NUMBERS = "adamw", "adam"  # weight decay would pull large numbers, and their high rates, towards 0
FALLING = "cosine"
_SHARE = 0.2  # of the rows, which is kept for validation
Part = tuple[dict[str, Any], Array | None]  # what the inputs are fed, and the targets


@dataclass
class Preparation:
    """A model and data that fit each other.

    Attributes:
        recipe: with all that was guessed.
        table: the data, without rows that were left out.
        validation: other data, if it is in a place of its own.
        objective: the loss; None where none is needed.
        notes: what was guessed, changed or left out.
    """

    recipe: Recipe
    view: ModelView
    table: Table
    validation: Table | None
    feeds: list[Feed]
    labels: list[str]
    objective: Objective | None = None
    notes: list[str] = field(default_factory=list)

    def part(self, table: Table) -> Part:
        """Some rows as a Trainer takes them."""
        inputs = arrays(table, self.feeds, self.recipe)
        if self.objective is None or self.objective.name is None or not self.labels:
            return inputs, None
        return inputs, self.objective.targets([table.column(name) for name in self.labels])

    def parts(self) -> tuple[Part, Part | None]:
        """What is learned from, and what it is tested with."""
        training, validating = self.tables()
        return self.part(training), None if validating is None else self.part(validating)

    def tables(self) -> tuple[Table, Table | None]:
        """The rows of both parts."""
        share = self.recipe.data.validation
        if self.validation is not None:
            return self._whole_batches(self.table), self._whole_batches(self.validation)
        if not isinstance(share, float) or share == 0:
            return self._whole_batches(self.table), None
        first, second = divided(self.table.rows, share, self._strata(), self.recipe.training.seed)
        return self._whole_batches(self.table.take(first)), self._whole_batches(self.table.take(second))

    def _strata(self) -> Array | None:
        """The class of each row, so that each part has its share of all."""
        if self.objective is None or self.objective.classes is None:
            return None
        return self.objective.classes.numbers(self.table.column(self.labels[0]))

    def _whole_batches(self, table: Table) -> Table:
        """As many rows as a model of a fixed batch can take."""
        fixed = fixed_batch(self.view)
        if fixed is None or table.rows % fixed == 0:
            return table
        if table.rows < fixed:
            raise OnwardError(f"the model takes batches of {fixed} rows, but there are {table.rows}; give more data")
        return table.take(np.arange(table.rows - table.rows % fixed))


def fixed_batch(view: ModelView) -> int | None:
    """The number of rows that the model insists on."""
    return next((each.batch for each in view.inputs if each.batch is not None), None)


def prepare(recipe: Recipe, *, labelled: bool = True) -> Preparation:
    """Read model and data, and decide what each input gets, what the label is and what the loss is.

    Args:
        recipe: what is known so far; what is decided is written into it.
        labelled: whether labels are needed: not to predict.
    """
    view = _view(recipe)
    table = _read(recipe.data.path, recipe, view)
    notes = list(table.notes)
    others = table.validation
    if isinstance(recipe.data.validation, str):
        others = _read(recipe.data.validation, recipe, view)
    elif recipe.data.validation is not None:
        others = None
    elif others is None:
        recipe.data.validation = _SHARE
    table = tokens.encoded(table, recipe, view, notes)
    others = None if others is None else tokens.encoded(others, recipe, view, notes)
    if labelled:
        table, others = _sequences(recipe, view, table, others, notes)
    else:
        table = sequence.in_pieces(recipe, view, table, notes)
    for name in recipe.data.inputs:
        view.input(name)
    assigned, labels = assigned_with_label(recipe, view, table, notes, labelled)
    recipe.data.inputs = {name: str(spec) for name, spec in assigned.items()}
    recipe.data.label = labels
    feeds = feeds_of(view.inputs, assigned)
    check_given(table, feeds)
    used = [*(name for spec in assigned.values() for name in spec.columns), *labels]
    table = broken.without(table, used, recipe.data.broken, notes)
    others = None if others is None else broken.without(others, used, recipe.data.broken, notes)
    _decide_on_files(recipe, table, feeds, notes)
    table, others = _without_missing(recipe, view, table, others, used, notes)
    if recipe.model.new_head == AUTO:
        recipe.model.new_head = _outputs_for(recipe, table, labels)
        view = _view(recipe)
    made = Preparation(recipe, view, table, others, feeds, labels, notes=notes)
    if labelled:
        _decide_on_loss(made)
        _decide_on_updates(made)
    _decide_on_batches(made)
    return made


def _without_missing(
    recipe: Recipe, view: ModelView, table: Table, others: Table | None, used: Sequence[str], notes: list[str]
) -> tuple[Table, Table | None]:
    """Both parts without missing values; a model that fills them in itself gets those of its inputs as they are."""
    way = recipe.data.missing
    if way == "error" and view.fills_missing and table.first_missing(used) is not None:
        recipe.data.missing = way = "keep"
        notes.append("missing values are left to the model, which has an Imputer (--missing drop leaves them out)")
    parts = []
    for each in (table, others):
        if each is not None:
            each = missing.without(each, recipe.data.label, "error" if way == "keep" else way, notes)
            each = missing.without(each, used, way, notes)
        parts.append(each)
    assert parts[0] is not None
    return parts[0], parts[1]


def _read(path: str, recipe: Recipe, view: ModelView) -> Table:
    return tokens.read_text(Path(path), recipe.data.tokenizer, view) or read(Path(path))


def _view(recipe: Recipe) -> ModelView:
    return ModelView(Path(recipe.model.path), recipe.model, seed=recipe.training.seed)


def _outputs_for(recipe: Recipe, table: Table, labels: Sequence[str]) -> int:
    """How many outputs the label needs: one for each class, or for each number."""
    if not labels:
        raise OnwardError("--new-head auto needs labels, but the data has no column that looks like them: --label NAME")
    columns = [table.column(name) for name in labels]
    loss = named.parse(recipe.training.loss)[0] if recipe.training.loss is not None else None
    if takes_numbers(loss, columns):
        return len(columns)
    return len(Classes.of(columns[0], None, recipe.data.classes, None, []).names)


def _sequences(
    recipe: Recipe, view: ModelView, table: Table, others: Table | None, notes: list[str]
) -> tuple[Table, Table | None]:
    """Tokens, and those that follow them, where that is what is learned."""
    name = sequence.predicted(recipe, view, table)
    if name is None:
        return table, others
    recipe.data.label = [sequence.NEXT + name]
    recipe.data.window = sequence.window(recipe, view, table.column(name), notes)
    both = (sequence.with_next(each, name, recipe.data.window, view) for each in (table, others) if each is not None)
    made = [*both, None]
    return made[0] or table, made[1]


def _decide_on_files(recipe: Recipe, table: Table, feeds: Sequence[Feed], notes: list[str]) -> None:
    """How pictures and sounds become numbers."""
    for feed in feeds:
        columns = [table.column(name) for name in feed.spec.columns]
        if columns and columns[0].kind is Kind.IMAGE:
            from onward.cli.data.image import settle

            settle(recipe.image, columns[0], feed.field, notes)
        elif columns and columns[0].kind is Kind.AUDIO:
            from onward.cli.data.audio import settle as settle_sounds

            settle_sounds(recipe.audio, columns[0], feed.field, notes)
        elif columns and recipe.image.scale is None and _are_bytes(feed, columns):
            recipe.image.scale = 1 / 255
            notes.append("pixels 0 to 255 become 0 to 1 (--scale 1 leaves them as they are)")


def _are_bytes(feed: Feed, columns: Sequence[Column]) -> bool:
    """Whether pictures come as whole numbers from 0 to 255."""
    return is_picture(feed.field, columns[0].values) and all(column.values.dtype == np.uint8 for column in columns)


def _decide_on_loss(made: Preparation) -> None:
    recipe = made.recipe
    columns: list[Column] = [made.table.column(name) for name in made.labels]
    objective = decide(made.view, columns, recipe.training, recipe.data.classes)
    made.objective = objective
    made.notes += objective.notes
    wanted = recipe.training
    wanted.loss = "none" if objective.name is None else objective.named
    wanted.outputs, wanted.class_axis = objective.outputs, objective.class_axis
    wanted.ignore_label = objective.ignored
    wanted.metrics = objective.usual_metrics() if wanted.metrics is None else wanted.metrics
    recipe.data.classes = None if objective.classes is None else objective.classes.names


def _decide_on_updates(made: Preparation) -> None:
    """The optimizer, and a rate that falls where it is looked for: trials like rates that are high for the end."""
    wanted = made.recipe.training
    if wanted.optimizer is None:
        columns = [made.table.column(name) for name in made.labels]
        numbers = bool(columns) and takes_numbers(named.parse(wanted.loss or "")[0], columns)
        wanted.optimizer = OF_NUMBERS if numbers else OPTIMIZER
    if wanted.learning_rate == AUTO and wanted.schedule is None and wanted.epochs:
        wanted.schedule = FALLING


def _decide_on_batches(made: Preparation) -> None:
    fixed = fixed_batch(made.view)
    if fixed is not None and made.recipe.training.batch_size != fixed:
        made.recipe.training.batch_size = fixed
        made.notes.append(f"batches of {fixed}, since the model takes no others")

"""What is learned: the column that was named, that is called so, or that is left over; and what the inputs get then."""

from __future__ import annotations

from collections.abc import Sequence

from onward.cli.data.assignment import Assigned, assign, usual_label
from onward.cli.data.specification import parse
from onward.cli.data.table import Kind, Table
from onward.cli.model import ModelView
from onward.cli.recipe import Recipe
from onward.errors import OnwardError


def assigned_with_label(
    recipe: Recipe, view: ModelView, table: Table, notes: list[str], labelled: bool
) -> tuple[Assigned, list[str]]:
    """What the inputs get, and the label."""
    given = recipe.data.inputs
    # What is only predicted has no labels, as a rule.
    said = [text for text in recipe.data.label if labelled or _is_there(text, table)]
    labels = [name for text in said for name in parse_label(text, table)]
    named = usual_label(table, view.inputs)
    if labels or recipe.training.loss == "none" or not labelled:
        if not labels and not labelled:
            # Tables for prediction may have labels, which are left out: those called so, or the last column.
            for label in [name for name in (named, list(table.columns)[-1]) if name is not None]:
                try:
                    return _with_notes(_without_label(table, view, given, label, is_named=label == named), notes), []
                except OnwardError:
                    continue
        return _with_notes(assign(table, view.inputs, given, labels), notes), labels
    if named is not None:
        return _with_notes(assign(table, view.inputs, given, [named]), notes), [named]
    return _guessed_label(view, table, given, notes)


def _without_label(
    table: Table, view: ModelView, given: dict[str, str], label: str, *, is_named: bool
) -> tuple[Assigned, list[str]]:
    """What the inputs get without a column that is called like a label, or that they cannot take with the others."""
    if not is_named:
        try:
            return assign(table, view.inputs, given, [])
        except OnwardError:
            pass
    return assign(table, view.inputs, given, [label])


def _is_there(text: str, table: Table) -> bool:
    try:
        parse_label(text, table)
    except OnwardError:
        return False
    return True


def parse_label(text: str, table: Table) -> Sequence[str]:
    """The columns that `--label` names: one, or several with commas between them."""
    if text in table.columns:
        return [text]
    return parse(text if text.startswith("cols:") else f"cols:{text}", table).columns


def _guessed_label(
    view: ModelView, table: Table, given: dict[str, str], notes: list[str]
) -> tuple[Assigned, list[str]]:
    """The column that is left over, or the last one of a table."""
    try:
        assigned, said = assign(table, view.inputs, given, [])
        taken = {name for spec in assigned.values() for name in spec.columns}
        left = [name for name in table.columns if name not in taken]
        if len(left) == 1:
            notes += [f"label {left[0]!r}, since no input takes it (--label names another)"]
            return assigned, left
        if not left:
            notes += said
            return assigned, []
    except OnwardError:
        pass
    last = list(table.columns)[-1]
    if len(table.columns) < 2 or table.columns[last].kind not in (Kind.NUMBER, Kind.TEXT):
        return _with_notes(assign(table, view.inputs, given, []), notes), []
    try:
        assigned, said = assign(table, view.inputs, given, [last])
    except OnwardError as error:
        raise OnwardError(f"{error}. (Label: the last column, {last!r}; --label names another)") from error
    notes += [f"label {last!r}, the last column (--label names another)", *said]
    return assigned, [last]


def _with_notes(found: tuple[Assigned, list[str]], notes: list[str]) -> Assigned:
    notes += found[1]
    return found[0]

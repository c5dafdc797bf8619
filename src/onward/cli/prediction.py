"""`onward predict` and `onward evaluate`: a model on data."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np

from onward.cli import console, session
from onward.cli.data.table import Kind
from onward.cli.labels import Classes
from onward.cli.model import ModelView
from onward.cli.preparation import Preparation, fixed_batch, prepare
from onward.cli.recipe import Recipe, from_metadata
from onward.errors import OnwardError
from onward.head.ending import SIGMOID, Head
from onward.runtime.files import write_bytes
from onward.runtime.session import open_session

Array = np.ndarray[Any, Any]

_WIDEST = 200  # numbers of a row that a csv file has


def recipe_for(model: Path) -> Recipe:
    """What a trained model says about its data; else an empty recipe."""
    text = ModelView(model).metadata.get(session.RECIPE)
    recipe = Recipe() if text is None else from_metadata(text, repr(str(model)))
    recipe.model.path = str(model)
    recipe.data.validation = 0.0
    return recipe


def evaluate(recipe: Recipe) -> dict[str, Any]:
    """The loss and the metrics of all rows."""
    made = prepare(recipe)
    trainer = session.trainer_of(made)
    table, _ = made.tables()
    return {"rows": table.rows, **trainer.evaluate(*made.part(table), batch_size=recipe.training.batch_size)}


def predict(recipe: Recipe) -> tuple[Preparation, dict[str, Array]]:
    """All outputs of the model, for all rows."""
    made = prepare(recipe, labelled=False)
    for text in made.notes:
        console.note(text)
    inputs = made.part(made.table)[0]
    session_ = open_session(made.view.path.read_bytes(), folder=made.view.path.parent)
    names = [output.name for output in session_.get_outputs()]
    size, rows = fixed_batch(made.view) or recipe.training.batch_size, made.table.rows
    parts: dict[str, list[Array]] = {}
    for first in range(0, rows, size):
        numbers = np.minimum(
            np.arange(first, first + size if fixed_batch(made.view) else min(first + size, rows)), rows - 1
        )
        feeds = {f.name: _fitted(inputs[f.name], f, numbers) for f in made.view.inputs}
        count = min(size, rows - first)
        for name, value in zip(names, session_.run(None, feeds), strict=True):
            for column, array in _columns(name, value).items():
                if array.ndim and len(array) == len(numbers):
                    parts.setdefault(column, []).append(array[:count])
    if not parts:
        raise OnwardError(f"no output of {str(made.view.path)!r} has a row for each row of the data")
    return made, {name: np.concatenate(values) for name, values in parts.items()}


def _columns(name: str, value: Any) -> dict[str, Array]:
    """An output as arrays: scikit-learn's files return a dictionary of probabilities for each row."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return {f"{name}[{key}]": np.array([row[key] for row in value]) for key in value[0]}
    return {name: value} if isinstance(value, np.ndarray) else {}


def _fitted(values: Any, field: Any, rows: Array) -> Array:
    return field.fit(np.asarray(values[rows])) if field.has_rows else np.asarray(values)


def choices(made: Preparation, outputs: dict[str, Array]) -> dict[str, Any]:
    """The class of each row and how sure the model is, if it predicts classes."""
    names = made.recipe.data.classes or made.view.classes
    try:
        head = made.view.ending(None)
    except OnwardError:
        return {}
    scores = outputs.get(head.end)
    if names is None or scores is None or sum(size != 1 for size in scores.shape[1:]) > 1:
        return {}
    scores = scores.reshape(len(scores), -1).astype(np.float64)
    probabilities = scores if head.is_probability else _probabilities(scores, head)
    if probabilities.shape[1] == 1:
        probabilities = np.hstack([1 - probabilities, probabilities])
    if probabilities.shape[1] < len(names):
        return {}
    chosen = probabilities.argmax(axis=1)
    known = [*Classes(names).names, *(f"output {index}" for index in range(len(names), probabilities.shape[1]))]
    return {"prediction": [known[index] for index in chosen], "confidence": probabilities.max(axis=1)}


def _probabilities(scores: Array, head: Head) -> Array:
    if head.link == SIGMOID or scores.shape[1] == 1:
        return np.asarray(1 / (1 + np.exp(-scores)))
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def write(path: Path, made: Preparation, outputs: dict[str, Array]) -> None:
    """Write predictions as csv or npz."""
    suffix = path.suffix.lower()
    chosen = choices(made, outputs)
    path.parent.mkdir(parents=True, exist_ok=True)
    if suffix == ".npz":
        whole = {**{name: np.asarray(values) for name, values in chosen.items()}, **outputs}
        content = io.BytesIO()
        np.savez(content, **{name: x.astype(str) if x.dtype == object else x for name, x in whole.items()})  # type: ignore[arg-type]
        write_bytes(path, content.getvalue())
    elif suffix in (".csv", ".tsv"):
        write_bytes(path, _csv(made, chosen, outputs, "\t" if suffix == ".tsv" else ",").encode())
    else:
        raise OnwardError(f"predictions are written as .csv, .tsv or .npz, not {path.name!r}")


def as_csv(made: Preparation, outputs: dict[str, Array]) -> str:
    return _csv(made, choices(made, outputs), outputs, ",")


def _csv(made: Preparation, chosen: dict[str, Any], outputs: dict[str, Array], delimiter: str) -> str:
    columns: dict[str, Any] = {"row": range(made.table.rows)}
    columns |= {c.name: c.values for c in made.table.columns.values() if c.kind in (Kind.IMAGE, Kind.AUDIO)}
    columns |= chosen
    for name, values in outputs.items():
        flat = values.reshape(len(values), -1)
        if flat.shape[1] > _WIDEST:
            console.note(f"output {name!r} has {flat.shape[1]} numbers in a row, and is left out; write an .npz file")
        elif flat.shape[1] == 1:
            columns[name] = flat[:, 0]
        else:
            columns |= {f"{name}[{index}]": flat[:, index] for index in range(flat.shape[1])}
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()

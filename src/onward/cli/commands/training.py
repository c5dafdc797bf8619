"""`onward train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click
import typer

from onward.cli import console, options, settings
from onward.cli.recipe import Recipe, read
from onward.errors import OnwardError

OUT = Path("out")


@settings.takes(*settings.TRAINING)
def train(
    model: Annotated[
        Path | None, typer.Argument(metavar="MODEL", help="The .onnx file to train.", show_default=False)
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="npz, npy, csv, tsv, parquet or txt; or a folder of images or wav files with a folder for each class.",
            rich_help_panel="Data",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The folder for what is written (out).")] = None,
    said: settings.Said | None = None,
    recipe: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Train as this recipe.toml says; options change it.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with a training that was stopped.")] = None,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Use a recipe though model or data have changed.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the training that is in --out.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Look at model and data, and stop.")] = False,
    as_json: options.Json = False,
) -> None:
    """Train a model on data, and write trained.onnx, a checkpoint, the history, a report and the recipe to repeat it.

    Columns, types and shapes are looked at first: what each input gets, the label and the loss are guessed and shown,
    and options correct them.
    """
    from onward.cli import training

    if resume is not None and recipe is not None:
        raise OnwardError("--resume has a recipe already; leave --recipe out")
    is_same = not allow_changes and model is None and data is None
    wanted = settings.apply(_begun(resume or recipe, must_be_same=is_same), said or {})
    for part, path in ((wanted.model, model), (wanted.data, data)):
        part.path = part.path if path is None else str(path)
    _require_paths(wanted)
    target = resume or out or OUT
    if resume is None and not dry_run:
        training.require_free(target, overwrite)
    with console.quiet(as_json):
        result = training.train(wanted, target, resume=resume is not None, dry_run=dry_run)
    if as_json:
        console.emit(result)


def _begun(source: Path | None, *, must_be_same: bool) -> Recipe:
    """The recipe that options change: an empty one, or that of a file."""
    if source is None:
        return Recipe()
    recipe = read(source)
    changed = recipe.changed() if must_be_same else []
    if changed:
        raise OnwardError(
            f"{', '.join(map(repr, changed))} has changed since {str(source)!r} was written; --allow-changes "
            "trains on it all the same"
        )
    return recipe


def _require_paths(wanted: Recipe) -> None:
    for what, path in (("model", wanted.model.path), ("data", wanted.data.path)):
        if not path:
            missing = f"say which {what} to train with: onward train model.onnx --data data.csv"
            raise click.UsageError(missing, click.get_current_context())

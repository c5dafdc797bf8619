"""`onward train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import click
import typer

from onward.cli import console, options

_DATA, _PICTURES, _SOUNDS, _TRAINING = "Data", "Pictures", "Sounds", "Training"

OUT = Path("out")


def train(
    model: Annotated[
        Path | None, typer.Argument(metavar="MODEL", help="The .onnx file to train.", show_default=False)
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="npz, npy, csv, tsv or parquet; or a folder of images or wav files with a folder for each class.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The folder for what is written (out).")] = None,
    inputs: options.Inputs = None,
    label: options.Label = None,
    classes: options.Classes = None,
    validation: options.Validation = None,
    missing: options.Missing = None,
    window: options.Window = None,
    size: options.Size = None,
    scale: options.Scale = None,
    mean: options.Mean = None,
    std: options.Std = None,
    grey: options.Grey = None,
    bgr: options.Bgr = None,
    fit: options.Fit = None,
    rate: options.Rate = None,
    seconds: options.Seconds = None,
    features: options.Features = None,
    mels: options.Mels = None,
    window_ms: options.WindowMs = None,
    hop_ms: options.HopMs = None,
    loss: options.Loss = None,
    output: options.Output = None,
    class_axis: options.ClassAxis = None,
    ignore_label: options.IgnoreLabel = None,
    metric: options.Metric = None,
    optimizer: Annotated[
        str | None, typer.Option(help="adamw (default), sgd:momentum=0.9, lamb ...", rich_help_panel=_TRAINING)
    ] = None,
    lr: Annotated[
        str | None,
        typer.Option(
            metavar="RATE|auto", help="The learning rate; auto (default) finds one.", rich_help_panel=_TRAINING
        ),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(help="cosine, one_cycle, linear, cosine:warmup_step_count=0.1 ...", rich_help_panel=_TRAINING),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=0, help="How often to go through the data (10).")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Rows of a batch (32).")] = None,
    accumulate: Annotated[int | None, typer.Option(min=1, help="So many batches make one update (1).")] = None,
    clip: Annotated[float | None, typer.Option(help="A bound of the norm of all gradients together.")] = None,
    patience: Annotated[
        int | None, typer.Option(min=0, help="Stop after so many epochs without a better loss; keep the best.")
    ] = None,
    train_: options.Train = None,
    freeze: options.Freeze = None,
    new_head: Annotated[
        int | None, typer.Option(metavar="CLASSES", min=1, help="Replace the last layer by one for so many classes.")
    ] = None,
    layer: Annotated[str | None, typer.Option(help="The layer that --new-head replaces, if it cannot be told.")] = None,
    seed: options.Seed = None,
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
    from onward.cli.recipe import Recipe, read
    from onward.errors import OnwardError

    source = resume or recipe
    if resume is not None and recipe is not None:
        raise OnwardError("--resume has a recipe already; leave --recipe out")
    wanted = Recipe() if source is None else read(source)
    if source is not None and not allow_changes:
        changed = wanted.changed()
        if changed and model is None and data is None:
            raise OnwardError(
                f"{', '.join(map(repr, changed))} has changed since {str(source)!r} was written; --allow-changes "
                "trains on it all the same"
            )
    said: dict[str, dict[str, Any]] = {
        "model": {"path": model and str(model), "new_head": new_head, "layer": layer},
        "data": {
            "path": data and str(data),
            "inputs": options.inputs_of(inputs),
            "label": label,
            "classes": options.classes_of(classes),
            "validation": options.validation_of(validation),
            "missing": missing,
            "window": window,
        },
        "image": options.picture(size, scale, mean, std, grey, bgr, fit),
        "audio": options.sound(rate, seconds, features, mels, window_ms, hop_ms),
        "training": {
            "loss": loss,
            "outputs": output,
            "class_axis": class_axis,
            "ignore_label": ignore_label,
            "metrics": metric,
            "optimizer": optimizer,
            "learning_rate": options.rate_of(lr),
            "schedule": schedule,
            "epochs": epochs,
            "batch_size": batch_size,
            "accumulate": accumulate,
            "clip": clip,
            "patience": patience,
            "train": train_,
            "freeze": freeze,
            "seed": seed,
        },
    }
    options.apply(wanted, said)
    for what, path in (("model", wanted.model.path), ("data", wanted.data.path)):
        if not path:
            missing_one = f"say which {what} to train with: onward train model.onnx --data data.csv"
            raise click.UsageError(missing_one, click.get_current_context())
    target = resume or out or OUT
    if resume is None and not dry_run:
        training.require_free(target, overwrite)
    with console.quiet(as_json):
        result = training.train(wanted, target, resume=resume is not None, dry_run=dry_run)
    if as_json:
        console.emit(result)

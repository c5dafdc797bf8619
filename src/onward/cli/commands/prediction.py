"""`onward evaluate` and `onward predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from onward.cli import console, options

Data = Annotated[Path, typer.Option("--data", help="As `onward train` takes it.")]


def evaluate(
    model: options.Model,
    data: Data,
    inputs: options.Inputs = None,
    label: options.Label = None,
    classes: options.Classes = None,
    missing: options.Missing = None,
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
    window: options.Window = None,
    loss: options.Loss = None,
    output: options.Output = None,
    metric: options.Metric = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows of a batch.")] = 32,
    as_json: options.Json = False,
) -> None:
    """Print the loss and the metrics of a model on data. What `onward train` wrote needs no other options."""
    from onward.cli import prediction

    recipe = prediction.recipe_for(model)
    said = _said(data, inputs, missing, batch_size) | {
        "image": options.picture(size, scale, mean, std, grey, bgr, fit),
        "audio": options.sound(rate, seconds, features, mels, window_ms, hop_ms),
    }
    said["data"] |= {"label": label, "classes": options.classes_of(classes), "window": window}
    said["training"] |= {"loss": loss, "outputs": output, "metrics": metric}
    options.apply(recipe, said)
    with console.quiet(as_json):
        result = prediction.evaluate(recipe)
    if as_json:
        console.emit(result)
        return
    shown = [(name, f"{value:,}" if name == "rows" else f"{value:.6g}") for name, value in result.items()]
    console.table("", ["", str(model)], shown, right=[str(model)])


def predict(
    model: options.Model,
    data: Data,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="A .csv, .tsv or .npz file. Default: print csv.")
    ] = None,
    inputs: options.Inputs = None,
    classes: options.Classes = None,
    missing: options.Missing = None,
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
    batch_size: Annotated[int, typer.Option(min=1, help="Rows of a batch.")] = 32,
    as_json: options.Json = False,
) -> None:
    """Write what a model says about data: classes by name where it knows them, and all outputs."""
    from onward.cli import prediction

    recipe = prediction.recipe_for(model)
    said = _said(data, inputs, missing, batch_size) | {
        "image": options.picture(size, scale, mean, std, grey, bgr, fit),
        "audio": options.sound(rate, seconds, features, mels, window_ms, hop_ms),
    }
    said["data"]["classes"] = options.classes_of(classes)
    options.apply(recipe, said)
    with console.quiet(as_json):
        made, outputs = prediction.predict(recipe)
        if out is not None:
            prediction.write(out, made, outputs)
    if as_json:
        chosen = {name: list(values) for name, values in prediction.choices(made, outputs).items()}
        console.emit({"rows": made.table.rows, **chosen, "outputs": list(outputs), "file": out and str(out)})
    elif out is None:
        print(prediction.as_csv(made, outputs), end="", flush=True)
    else:
        console.say(f"wrote {out}: {made.table.rows:,} rows")


def _said(data: Path, inputs: list[str] | None, missing: str | None, batch_size: int) -> dict[str, dict[str, Any]]:
    return {
        "data": {"path": str(data), "inputs": options.inputs_of(inputs), "missing": missing},
        "training": {"batch_size": batch_size},
    }

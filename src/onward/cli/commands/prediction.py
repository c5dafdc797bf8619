"""`onward evaluate` and `onward predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onward.cli import console, options, settings
from onward.cli.recipe import Recipe

Data = Annotated[Path, typer.Option("--data", help="As `onward train` takes it.", rich_help_panel="Data")]


@settings.takes(*settings.EVALUATION)
def evaluate(model: options.Model, data: Data, said: settings.Said, as_json: options.Json = False) -> None:
    """Print the loss and the metrics of a model on data. What `onward train` wrote needs no other options."""
    from onward.cli import prediction

    with console.quiet(as_json):
        result = prediction.evaluate(_recipe(model, data, said))
    if as_json:
        console.emit(result)
        return
    shown = [(name, f"{value:,}" if name == "rows" else f"{value:.6g}") for name, value in result.items()]
    console.table("", ["", str(model)], shown, right=[str(model)])


@settings.takes(*settings.PREDICTION)
def predict(
    model: options.Model,
    data: Data,
    said: settings.Said,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="A .csv, .tsv or .npz file. Default: print csv.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Write what a model says about data: classes by name where it knows them, and all outputs."""
    from onward.cli import prediction

    with console.quiet(as_json):
        made, outputs = prediction.predict(_recipe(model, data, said))
        if out is not None:
            prediction.write(out, made, outputs)
    if as_json:
        chosen = {name: list(values) for name, values in prediction.choices(made, outputs).items()}
        console.emit({"rows": made.table.rows, **chosen, "outputs": list(outputs), "file": out and str(out)})
    elif out is None:
        print(prediction.as_csv(made, outputs), end="", flush=True)
    else:
        console.say(f"wrote {out}: {made.table.rows:,} rows")


def _recipe(model: Path, data: Path, said: settings.Said) -> Recipe:
    """What the model says about its data, as options change it."""
    from onward.cli import prediction

    recipe = settings.apply(prediction.recipe_for(model), said)
    recipe.data.path = str(data)
    return recipe

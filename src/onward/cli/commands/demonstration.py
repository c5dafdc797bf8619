"""`onward demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onward.cli import console

_FILES = ("digits_cnn.onnx", "digits.npz")
_EPOCHS = 12


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder for what is written.")] = Path("onward-demo"),
) -> None:
    """Train a small network that torch exported for inference, on handwritten digits, in a few seconds."""
    from importlib import resources

    from onward.cli import training
    from onward.cli.recipe import Recipe
    from onward.runtime.files import write_bytes

    out.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        write_bytes(out / name, resources.files("onward.cli.demonstration").joinpath(name).read_bytes())
    model, data = (out / name for name in _FILES)
    options = f"--scale 1/16 --schedule one_cycle --lr 0.01 --epochs {_EPOCHS}"
    console.say(
        f"{model.name} came out of torch, for inference; torch is not needed here. What follows is the same as\n"
    )
    console.say(f"  onward train {model} --data {data} {options} --out {out / 'out'}\n")
    recipe = Recipe()
    recipe.model.path, recipe.data.path = str(model), str(data)
    recipe.image.scale = 1 / 16
    wanted = recipe.training
    wanted.schedule, wanted.learning_rate, wanted.epochs = "one_cycle", 0.01, _EPOCHS
    training.require_free(out / "out", overwrite=True)
    training.train(recipe, out / "out")

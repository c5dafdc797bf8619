"""`onward verify` and `onward bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from onward.cli import console, options, settings, status
from onward.cli.commands.checking import Dimensions

Data = Annotated[Path | None, typer.Option("--data", help="Feed its first rows. Default: random numbers.")]
Rows = Annotated[int, typer.Option(min=1, help="Rows of the batch.")]


@settings.takes(*settings.FEEDING)
def verify(
    model: options.Model,
    said: settings.Said,
    data: Data = None,
    rows: Rows = 2,
    dim: Dimensions = None,
    each: Annotated[bool, typer.Option("--each", help="Compare each weight by itself, too; takes longer.")] = False,
    seed: Annotated[int, typer.Option(help="Decides random numbers and directions.")] = 0,
    as_json: options.Json = False,
) -> int:
    """Compare the gradient of a model, as onnxruntime computes it, with differences in float64.

    Exit code 1: they disagree.
    """
    from onward.testing.agreement import TOLERANCE, compare

    feeds = _feeds(model, data, said, rows, dim, seed)
    found = compare(model, feeds, each=each, seed=seed)
    if as_json:
        console.emit({"ok": found.ok, "tolerance": TOLERANCE, **vars(found)})
        return status.OK if found.ok else status.NO
    console.say(f"{found.count} weights, of which {found.moving} have a gradient on this data")
    console.say(f"outputs differ from float64 by {found.outputs:.1e} of the largest")
    worst = sorted(found.tensors.items(), key=lambda item: -item[1])
    if worst:
        console.table("the worst weights", ["weight", "differs by"], [(n, f"{v:.1e}") for n, v in worst[:10]])
    verdict = "agrees with" if found.ok else "DIFFERS from"
    console.say(f"the gradient {verdict} differences: by {found.gradient:.1e}, where {TOLERANCE:.0e} is allowed")
    return status.OK if found.ok else status.NO


@settings.takes(*settings.FEEDING)
def bench(
    model: options.Model,
    said: settings.Said,
    data: Data = None,
    rows: Rows = 32,
    dim: Dimensions = None,
    optimizer: options.Optimizer = "adamw",
    steps: Annotated[int, typer.Option(min=1, help="How many are timed; the median counts.")] = 20,
    as_json: options.Json = False,
) -> None:
    """Time a training step of a model, and say how much memory it takes; against torch if onnx2torch is installed."""
    from onward.cli.bench import bench as measure
    from onward.cli.model import ModelView

    feeds = _feeds(model, data, said, rows, dim, 0)
    found = measure(ModelView(model), feeds, optimizer=optimizer, steps=steps)
    shapes = {name: list(array.shape) for name, array in feeds.items()}
    if as_json:
        console.emit({**found, "inputs": shapes})
        return
    _show(model, found, shapes)


def _feeds(model: Path, data: Path | None, said: settings.Said, rows: int, dim: Any, seed: int) -> dict[str, Any]:
    """The first rows of data, or random numbers."""
    from onward.cli.feeds import first_rows, random_rows
    from onward.cli.model import ModelView
    from onward.cli.prediction import recipe_for

    if data is None:
        return random_rows(ModelView(model), rows, dict(dim or []), seed)
    recipe = settings.apply(recipe_for(model), said)
    recipe.data.path = str(data)
    return first_rows(recipe, rows)


def _show(model: Path, found: dict[str, Any], shapes: dict[str, list[int]]) -> None:
    torch = found["torch_step_seconds"]
    ratio = f"{found['step_seconds'] / found['inference_seconds']:.1f} times inference"
    rows = [
        ("inference", _time(found["inference_seconds"]), ""),
        ("training step", _time(found["step_seconds"]), ratio),
        ("building the graphs", _time(found["build_seconds"]), "once"),
        ("memory", console.size(found["memory_bytes"]), ""),
    ]
    if torch is not None:
        rows.insert(2, ("training step of torch", _time(torch), f"{torch / found['step_seconds']:.2f} times ours"))
    fed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    console.table(f"{model}: {found['numbers']:,} numbers are trained; fed {fed}", ["", "", ""], rows)
    if torch is None:
        console.say(f"no comparison with PyTorch: {found['torch_absent']}")


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"

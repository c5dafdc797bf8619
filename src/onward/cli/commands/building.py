"""`onward gradient`, `onward artifacts` and `onward step`: graphs for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from onward.cli import console, options

Written = Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The file to write.")]


def gradient(
    model: options.Model,
    out: Written,
    wrt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A parameter, an input or another value; may be repeated. Default: all weights."
        ),
    ] = None,
    of: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="The output to differentiate; may be repeated.")
    ] = None,
    parameters: Annotated[
        str, typer.Option(help="initializers: weights stay in the file. inputs: they have to be fed.")
    ] = "initializers",
    as_json: options.Json = False,
) -> None:
    """Write a model that returns its outputs and their gradient, in standard operators."""
    from onward.autodiff.gradient import gradient as differentiate

    _write(differentiate(model, wrt, of, parameters=parameters), out, model, as_json)  # type: ignore[arg-type]


def artifacts(
    model: options.Model,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="The folder to write to.")],
    loss: options.Loss = None,
    optimizer: options.Optimizer = "adamw",
    train: options.Train = None,
    freeze: options.Freeze = None,
    output: options.Output = None,
    prefix: Annotated[str, typer.Option(help="What the names of the files begin with.")] = "",
    ort_format: Annotated[bool, typer.Option("--ort-format", help="Write .ort files too.")] = False,
    as_json: options.Json = False,
) -> None:
    """Write training, evaluation and optimizer model and a checkpoint, as onnxruntime.training.artifacts does."""
    from onward.artifacts import generate_artifacts

    made = generate_artifacts(
        model,
        requires_grad=_selected(model, train, freeze),
        loss=_loss(loss),
        optimizer=optimizer,
        artifact_directory=out,
        prefix=prefix,
        ort_format=ort_format,
        loss_input_names=output,
    )
    if as_json:
        console.emit({"files": {what: str(path) for what, path in made.paths.items()}, "trainable": made.trainable})
        return
    console.say(f"{len(made.trainable)} parameters are trained")
    for path in made.paths.values():
        _announce(path)


def step(
    model: options.Model,
    out: Written,
    loss: options.Loss = None,
    optimizer: options.Optimizer = "adamw",
    state: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where the first state goes, a safetensors file. Default: beside the step."),
    ] = None,
    train: options.Train = None,
    freeze: options.Freeze = None,
    output: options.Output = None,
    seed: options.Seed = None,
    self_contained: Annotated[
        bool, typer.Option("--self-contained", help="Keep the first state in the model, as default values.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Write forward, loss, backward and update as one model: any onnxruntime, in any language, trains with it."""
    from onward.step import training_step

    first = state if state is not None else None if self_contained else out.with_suffix(".safetensors")
    made = training_step(
        model,
        _loss(loss),
        optimizer,
        trainable=_selected(model, train, freeze),
        loss_inputs=output,
        seed=seed or 0,
        checkpoint=first,
        self_contained=self_contained,
    )
    _write(made, out, model, as_json, *([] if first is None else [first]))


def _loss(name: str | None) -> str | None:
    """A loss by name; None where the first output is it."""
    from onward.errors import OnwardError
    from onward.losses.registry import names

    if name is None:
        raise OnwardError(f"say what to train for: --loss {'|'.join(names())}, or --loss none: the first output is it")
    return None if name == "none" else name


def _selected(model: Path, train: Sequence[str] | None, freeze: Sequence[str] | None) -> list[str] | None:
    """The parameters that patterns stand for."""
    from onward.autodiff.registry import custom_operators
    from onward.graph.prepare import prepare
    from onward.training.selection import selected

    if train is None and freeze is None:
        return None
    return selected(prepare(model, keep=custom_operators()), train, freeze)


def _write(proto: Any, out: Path, model: Path, as_json: bool, *others: Path) -> None:
    from onward.cli.files import write_model

    write_model(proto, out, model.parent)
    if as_json:
        described = {"inputs": proto.graph.input, "outputs": proto.graph.output}
        names = {what: [value.name for value in values] for what, values in described.items()}
        console.emit({"files": [str(out), *map(str, others)], **names})
        return
    console.say(f"inputs:  {_named(proto.graph.input)}")
    console.say(f"outputs: {_named(proto.graph.output)}")
    for path in (out, *others):
        _announce(path)


def _named(values: Sequence[Any]) -> str:
    names = [value.name for value in values]
    shown = ", ".join(names[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown


def _announce(path: Path) -> None:
    console.say(f"wrote {path} ({console.size(path.stat().st_size)})")

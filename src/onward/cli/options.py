"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from onward.errors import OnwardError

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="An .onnx file.")]
Loss = Annotated[
    str | None,
    typer.Option(
        help="A loss by name (cross_entropy, mse ...), an .onnx file, or `none`: the first output is the loss."
    ),
]
Optimizer = Annotated[str, typer.Option(help="adamw, sgd, lamb ...")]
Train = Annotated[
    list[str] | None,
    typer.Option("--train", metavar="PATTERN", help="Train these parameters only, such as 'head.*'; may be repeated."),
]
Freeze = Annotated[
    list[str] | None,
    typer.Option("--freeze", metavar="PATTERN", help="Leave these parameters as they are; may be repeated."),
]
Output = Annotated[
    list[str] | None,
    typer.Option(
        "--output", metavar="NAME", help="The output (or another value) that the loss takes; may be repeated."
    ),
]
Seed = Annotated[int | None, typer.Option(help="Decides the order of rows, what is validated, and what Dropout draws.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

_DATA = "Data"
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="NAME=WHAT",
        help="What an input gets: x=cols:0-9, x=cols:a,b,c, x=pixels, mask=const:1; may be repeated.",
        rich_help_panel=_DATA,
    ),
]
Label = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="COLUMN",
        help="What is learned: a column, several (a,b), or next:tokens.",
        rich_help_panel=_DATA,
    ),
]
Classes = Annotated[
    str | None,
    typer.Option(
        "--classes", metavar="A,B,...", help="The classes in the order of the outputs.", rich_help_panel=_DATA
    ),
]
Validation = Annotated[
    str | None,
    typer.Option(
        "--validation",
        metavar="SHARE|PATH",
        help="The share of the rows that is kept for validation (0.2; 0 for none), or other data.",
        rich_help_panel=_DATA,
    ),
]
Missing = Annotated[
    str | None,
    typer.Option(
        "--missing", metavar="error|drop|mean|zero", help="What becomes of missing values.", rich_help_panel=_DATA
    ),
]
Window = Annotated[
    int | None,
    typer.Option("--window", min=1, help="Tokens of a row, where data is one long text.", rich_help_panel=_DATA),
]
ClassAxis = Annotated[
    int | None, typer.Option("--class-axis", help="Where scores have the classes: 1, or -1 for the last axis.")
]
IgnoreLabel = Annotated[int | None, typer.Option("--ignore-label", help="Labels of this number do not count.")]
Metric = Annotated[
    list[str] | None, typer.Option("--metric", metavar="NAME", help="accuracy, f1_macro, mae, r2 ...; may be repeated.")
]


def inputs_of(given: Sequence[str] | None) -> dict[str, str] | None:
    """`--input NAME=WHAT`, by name."""
    if given is None:
        return None
    found = {}
    for text in given:
        name, equals, what = text.partition("=")
        if not equals or not name or not what:
            raise OnwardError(f"--input {text!r} is not NAME=WHAT, such as x=cols:0-9 or ids=tokens")
        found[name] = what
    return found


def classes_of(given: str | None) -> list[str | int] | None:
    return None if given is None else [name.strip() for name in given.split(",")]


def validation_of(given: str | None) -> str | float | None:
    """A share, or a path."""
    if given is None:
        return None
    try:
        return float(given)
    except ValueError:
        return given


def rate_of(given: str | None) -> str | float | None:
    if given is None or given == "auto":
        return given
    try:
        return float(given)
    except ValueError:
        raise OnwardError(f"--lr is a number or auto, not {given!r}") from None


def apply(recipe: Any, said: Mapping[str, Mapping[str, Any]]) -> None:
    """Put what options say into a recipe; what they leave open stays."""
    for part, entries in said.items():
        for name, value in entries.items():
            if value is not None:
                setattr(getattr(recipe, part), name, value)

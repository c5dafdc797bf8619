"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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

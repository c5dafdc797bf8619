"""`onward check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from onward.cli import console, status


def _size(text: str) -> tuple[str, int]:
    name, _, size = text.rpartition("=")
    if not name or not size.isdigit():
        raise typer.BadParameter(f"{text!r} is not NAME=SIZE")
    return name, int(size)


Dimensions = Annotated[
    list[Any] | None,
    typer.Option(
        metavar="NAME=SIZE",
        parser=_size,
        help="The size of a dynamic dimension, such as batch=8 or x[0]=8; may be repeated.",
    ),
]


def check(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL...", help="One or several .onnx files.")],
    wrt: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Train this parameter; may be repeated.")
    ] = None,
    of: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Differentiate this output; may be repeated.")
    ] = None,
    dim: Dimensions = None,
    optimizer: Annotated[str, typer.Option(help="Whose state and operations count.")] = "adamw",
    everything: Annotated[bool, typer.Option("--all", help="Leave nothing out of long lists.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: a list where several files are given.")] = False,
) -> int:
    """Say whether models can be trained, how each operator is differentiated, and what training takes.

    Exit code 1: at least one of them cannot be trained.
    """
    from onward.errors import OnwardError
    from onward.inspection.check import check as inspect

    reports: list[dict[str, Any]] = []
    code = status.OK
    for number, model in enumerate(models):
        try:
            report = inspect(model, wrt, of, dims=dict(dim or []), optimizer=optimizer)
        except OnwardError as error:
            console.complain(error)
            reports.append({"name": model.name, "ok": False, "error": str(error)})
            code = status.WRONG
            continue
        code = max(code, status.OK if report.ok else status.NO)
        if as_json:
            reports.append(report.to_dict())
        else:
            print(("\n" if number else "") + report.text(None if everything else 12), flush=True)
    if as_json and (code != status.WRONG or len(models) > 1):
        console.emit(reports if len(models) > 1 else reports[0])
    return code

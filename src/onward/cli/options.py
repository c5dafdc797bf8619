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
_PICTURES, _SOUNDS = "Pictures", "Sounds"
Size = Annotated[
    str | None,
    typer.Option("--size", metavar="HEIGHTxWIDTH", help="The size of pictures.", rich_help_panel=_PICTURES),
]
Scale = Annotated[
    str | None,
    typer.Option("--scale", metavar="NUMBER", help="What pixels are multiplied by (1/255).", rich_help_panel=_PICTURES),
]
Mean = Annotated[
    str | None,
    typer.Option(
        "--mean",
        metavar="A,B,C",
        help="What is taken off then; imagenet stands for its own.",
        rich_help_panel=_PICTURES,
    ),
]
Std = Annotated[
    str | None, typer.Option("--std", metavar="A,B,C", help="What is divided by then.", rich_help_panel=_PICTURES)
]
Grey = Annotated[
    bool | None, typer.Option("--grey", help="Grey instead of colours, where both fit.", rich_help_panel=_PICTURES)
]
Bgr = Annotated[bool | None, typer.Option("--bgr", help="Blue first, as OpenCV has it.", rich_help_panel=_PICTURES)]
Fit = Annotated[
    str | None,
    typer.Option("--fit", metavar="stretch|crop|pad", help="How pictures get their size.", rich_help_panel=_PICTURES),
]
Rate = Annotated[int | None, typer.Option("--rate", help="Samples a second of sounds.", rich_help_panel=_SOUNDS)]
Seconds = Annotated[float | None, typer.Option("--seconds", help="The length of sounds.", rich_help_panel=_SOUNDS)]
Features = Annotated[
    str | None,
    typer.Option("--features", metavar="raw|mel", help="Samples, or a spectrogram.", rich_help_panel=_SOUNDS),
]
Mels = Annotated[int | None, typer.Option("--mels", help="Bands of the spectrogram.", rich_help_panel=_SOUNDS)]
WindowMs = Annotated[float | None, typer.Option("--window-ms", help="Its windows (25).", rich_help_panel=_SOUNDS)]
HopMs = Annotated[float | None, typer.Option("--hop-ms", help="From one to the next (10).", rich_help_panel=_SOUNDS)]
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


def picture(
    size: str | None,
    scale: str | None,
    mean: str | None,
    std: str | None,
    grey: bool | None,
    bgr: bool | None,
    fit: str | None,
) -> dict[str, Any]:
    """What options say about pictures."""
    means, deviations = _numbers("mean", mean) if mean != "imagenet" else None, _numbers("std", std)
    if mean == "imagenet":
        means, deviations, grey = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225], None  # of three colours
    return {
        "size": _sizes(size),
        "scale": _fraction(scale),
        "mean": means,
        "std": deviations,
        "grey": grey,
        "bgr": bgr,
        "fit": fit,
    }


def sound(
    rate: int | None,
    seconds: float | None,
    features: str | None,
    mels: int | None,
    window_ms: float | None,
    hop_ms: float | None,
) -> dict[str, Any]:
    """What options say about sounds."""
    if features not in (None, "raw", "mel"):
        raise OnwardError(f"--features is raw or mel, not {features!r}")
    for name, value in (
        ("rate", rate),
        ("seconds", seconds),
        ("mels", mels),
        ("window-ms", window_ms),
        ("hop-ms", hop_ms),
    ):
        if value is not None and value <= 0:
            raise OnwardError(f"--{name} is a number above 0, not {value}")
    return {
        "rate": rate,
        "seconds": seconds,
        "features": features,
        "mels": mels,
        "window_ms": window_ms,
        "hop_ms": hop_ms,
    }


def _sizes(text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdigit() and int(part) for part in parts):
        raise OnwardError(f"--size is HEIGHTxWIDTH, such as 48x192, not {text!r}")
    sizes = [int(part) for part in parts]
    return sizes * 2 if len(sizes) == 1 else sizes


def _fraction(text: str | None) -> float | None:
    """A number, or one divided by another: 1/255."""
    if text is None:
        return None
    above, slash, below = text.partition("/")
    try:
        return float(above) / float(below) if slash else float(above)
    except (ValueError, ZeroDivisionError):
        raise OnwardError(f"--scale is a number, such as 1/255, not {text!r}") from None


def _numbers(name: str, text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise OnwardError(f"--{name} is a number, or one for each channel, such as 0.5,0.5,0.5, not {text!r}") from None


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

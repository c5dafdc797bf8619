"""What users write behind options, as the values that recipes have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from onward.errors import OnwardError

_IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}  # of three colours, from 0 to 1


def inputs(given: Sequence[str]) -> dict[str, str]:
    """`--input NAME=WHAT`, by name."""
    found = {}
    for text in given:
        name, equals, what = text.partition("=")
        if not equals or not name or not what:
            raise OnwardError(f"--input {text!r} is not NAME=WHAT, such as x=cols:0-9 or ids=tokens")
        found[name] = what
    return found


def listed(text: str) -> list[str]:
    """Names with commas between them."""
    return [name.strip() for name in text.split(",")]


def validation(text: str) -> str | float:
    """A share, or a path."""
    try:
        return float(text)
    except ValueError:
        return text


def tokenizer(text: str) -> str:
    """A file, or the folder of a model that it is in."""
    return str(Path(text) / "tokenizer.json") if Path(text).is_dir() else text


def size(text: str) -> list[int]:
    """HEIGHTxWIDTH, or one number for both."""
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdigit() and int(part) for part in parts):
        raise OnwardError(f"--size is HEIGHTxWIDTH, such as 48x192, not {text!r}")
    sizes = [int(part) for part in parts]
    return sizes * 2 if len(sizes) == 1 else sizes


def fraction(text: str) -> float:
    """A number, or one divided by another: 1/255."""
    above, slash, below = text.partition("/")
    try:
        return float(above) / float(below) if slash else float(above)
    except (ValueError, ZeroDivisionError):
        raise OnwardError(f"--scale is a number, such as 1/255, not {text!r}") from None


def mean(text: str) -> Any:
    """Numbers, or `imagenet`, which says what to divide by, too."""
    return dict(_IMAGENET) if text == "imagenet" else _numbers("mean", text)


def std(text: str) -> list[float]:
    return _numbers("std", text)


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise OnwardError(f"--{name} is a number, or one for each channel, such as 0.5,0.5,0.5, not {text!r}") from None


def learning_rate(text: str) -> str | float:
    if text == "auto":
        return text
    try:
        return float(text)
    except ValueError:
        raise OnwardError(f"--lr is a number or auto, not {text!r}") from None


def classes(text: str) -> int | str:
    """How many outputs a new last layer has: a number, or as many as the label has classes."""
    if text == "auto":
        return text
    if not text.isdigit() or not int(text):
        raise OnwardError(f"--new-head is a number of classes, or auto: as many as the label has; not {text!r}")
    return int(text)


def one_of(flag: str, *known: str) -> Callable[[str], str]:
    """One of some words."""

    def read(text: str) -> str:
        if text not in known:
            raise OnwardError(f"--{flag} is {', '.join(known[:-1])} or {known[-1]}, not {text!r}")
        return text

    return read


def positive(flag: str) -> Callable[[Any], Any]:
    """A number above 0."""

    def read(value: Any) -> Any:
        if value <= 0:
            raise OnwardError(f"--{flag} is a number above 0, not {value}")
        return value

    return read

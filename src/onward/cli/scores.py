"""The scores that a loss of classes takes: which axis has classes, how many there are, which labels do not count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onward.cli.data.table import Column, Kind
from onward.cli.model import ModelView, shown
from onward.cli.recipe import Training
from onward.errors import OnwardError

_IGNORED = -100  # what Hugging Face and torch call labels that do not count


def require_one_place(view: ModelView, output: str, axis: int | None, columns: Sequence[Column]) -> None:
    """Refuse one class in a row where the model has scores for several places of it."""
    shape = view.shape(output)
    if shape is None or columns[0].kind is Kind.ARRAY:
        return
    places = shape[2:] if axis is None else shape[1:axis]
    if any(isinstance(size, int) and size != 1 for size in places):
        raise OnwardError(
            f"output {output!r} of the model is {shown(shape)}: scores for each of several places, but label "
            f"{columns[0].name!r} has one class for each row; --output names another value, and --new-head "
            "--layer replaces an earlier layer"
        )


def class_axis(view: ModelView, output: str, columns: Sequence[Column], wanted: Training) -> int | None:
    """The last axis, where scores have the classes there, as language models do; None for the usual second one."""
    shape = view.shape(output)
    if wanted.class_axis is not None:
        if shape is None or wanted.class_axis not in (1, -1, len(shape) - 1):
            raise OnwardError(
                f"--class-axis is 1 or -1, the second or the last axis of {output!r}, not {wanted.class_axis}"
            )
        return None if wanted.class_axis == 1 else len(shape) - 1
    if shape is None or len(shape) < 3 or columns[0].kind is not Kind.ARRAY:
        return None
    inner = columns[0].values.shape[1:]
    second = _agree((shape[0], *shape[2:]), inner)
    last = _agree(shape[:-1], inner)
    if last and (not second or not isinstance(shape[1], int) or any(f.dtype == np.int64 for f in view.inputs)):
        return len(shape) - 1
    return None


def _agree(shape: Sequence[Any], inner: Sequence[int]) -> bool:
    return len(shape) - 1 == len(inner) and all(
        not isinstance(size, int) or size == given for size, given in zip(shape[1:], inner, strict=True)
    )


def width_of(view: ModelView, output: str, axis: int | None) -> int | None:
    shape = view.shape(output)
    if shape is None:
        return None
    if len(shape) < 2:
        return 1
    size = shape[1 if axis is None else axis]
    return size if isinstance(size, int) else None


def ignored_label(columns: Sequence[Column], wanted: Training) -> int | None:
    if wanted.ignore_label is not None:
        return wanted.ignore_label
    values = columns[0].values
    is_array = columns[0].kind is Kind.ARRAY and values.dtype.kind in "i"
    return _IGNORED if is_array and bool((values == _IGNORED).any()) else None

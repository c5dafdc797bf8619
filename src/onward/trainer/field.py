"""What a model takes under one name, and arrays that fit it: element type, rank and sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.errors import OnwardError
from onward.signature import Role

Dim = int | str | None


@dataclass(frozen=True)
class Field:
    """An input of a training graph that the user feeds.

    Args:
        dtype: the element type; None takes arrays as they are, `object` stands for texts.
        shape: sizes, with names or None for those that change; None if nothing is known.
        role: `Role.INPUT` for what the model itself takes, `Role.TARGET` for what the loss takes besides.
    """

    name: str
    dtype: np.dtype[Any] | None = None
    shape: tuple[Dim, ...] | None = None
    role: Role = Role.INPUT

    def __post_init__(self) -> None:
        if self.dtype is not None:
            object.__setattr__(self, "dtype", np.dtype(self.dtype))
        if self.shape is not None:
            object.__setattr__(self, "shape", tuple(self.shape))

    @property
    def is_target(self) -> bool:
        return self.role is Role.TARGET

    @property
    def has_rows(self) -> bool:
        """Whether its first axis is that of the rows; a scalar is the same for all of them."""
        return self.shape is None or len(self.shape) > 0

    @property
    def batch(self) -> int | None:
        """The number of rows that the model insists on."""
        size = self.shape[0] if self.shape else None
        return size if isinstance(size, int) else None

    def __str__(self) -> str:
        what = "target" if self.is_target else "input"
        return f"{what} {self.name!r}"

    def fit(self, array: np.ndarray) -> np.ndarray:
        """`array` in the type and the rank that the model takes; a copy only where the type is another."""
        return self.fit_shape(self.fit_dtype(array))

    # Element types ------------------------------------------------------------------------------------------------

    def fit_dtype(self, array: np.ndarray) -> np.ndarray:
        """`array` in the element type of the model, if that loses nothing but the precision of fractions."""
        wanted = self.dtype
        array = _numbers_of_objects(array, self)
        if wanted is None or array.dtype == wanted:
            return array
        if wanted.kind in "OUST":
            return self._texts(array)
        kind = _kind(array.dtype)
        if kind not in "biuf":
            raise self._refusal(array, "encode it as numbers first" if kind in "OUST" else "")
        if _kind(wanted) == "f":
            return self._floats(array)
        if kind == "f" or wanted.kind == "b":
            return self._exactly(array)
        if not np.can_cast(array.dtype, wanted, "safe") and array.size:
            bounds = np.iinfo(wanted)
            low, high = int(array.min()), int(array.max())
            if low < bounds.min or high > bounds.max:
                raise OnwardError(
                    f"{self} is {wanted}, which goes from {bounds.min} to {bounds.max}, but the data has numbers from "
                    f"{low} to {high}"
                )
        return array.astype(wanted)

    def _floats(self, array: np.ndarray) -> np.ndarray:
        assert self.dtype is not None
        try:
            with np.errstate(over="raise"):
                return array.astype(self.dtype)
        except FloatingPointError:
            raise OnwardError(
                f"{self} is {self.dtype}, which cannot hold numbers as large as those of the data ({array.dtype}); "
                "scale them"
            ) from None

    def _exactly(self, array: np.ndarray) -> np.ndarray:
        """Numbers as integers or truth values, where they are that already."""
        assert self.dtype is not None
        with np.errstate(invalid="ignore"):
            converted = array.astype(self.dtype)
        if not np.array_equal(converted, array):
            wrong = array[converted != array].reshape(-1)[0]
            what = "truth values" if self.dtype.kind == "b" else f"whole numbers ({self.dtype})"
            raise OnwardError(f"{self} takes {what}, but the data ({array.dtype}) has {wrong!s}")
        return converted

    def _texts(self, array: np.ndarray) -> np.ndarray:
        if array.dtype.kind in "UO":
            return array
        if array.dtype.kind in "ST":
            return array.astype(str)
        raise self._refusal(array, "convert it with .astype(str)")

    def _refusal(self, array: np.ndarray, advice: str) -> OnwardError:
        kind = "text" if self.dtype is not None and self.dtype.kind in "OUST" else str(self.dtype)
        return OnwardError(f"{self} is {kind}, but the data is {array.dtype}" + (f"; {advice}" if advice else ""))

    # Shapes -------------------------------------------------------------------------------------------------------

    def fit_shape(self, array: np.ndarray) -> np.ndarray:
        """`array` with the axes of the model; axes of size 1 at the end may be missing, or be too many."""
        return array.reshape(self.fitted_shape(array.shape))

    def fitted_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape that the model is fed where the data has `shape`."""
        shape = tuple(shape)
        if self._admits(shape):
            return shape
        assert self.shape is not None
        rank = len(self.shape)
        longer = (*shape, *[1] * (rank - len(shape)))
        if longer != shape and all(size == 1 for size in self.shape[len(shape) :]) and self._admits(longer):
            return longer
        if 0 < rank < len(shape) and all(size == 1 for size in shape[rank:]) and self._admits(shape[:rank]):
            return shape[:rank]
        raise OnwardError(
            f"{self} has shape {_shown(self.shape)}, but the data has {_shown(shape)}{self._advice(shape)}"
        )

    def _admits(self, shape: Sequence[int]) -> bool:
        """Whether an array of this shape can be fed, however many rows it has."""
        if self.shape is None:
            return True
        pairs = zip(self.shape[1:], shape[1:], strict=False)
        return len(shape) == len(self.shape) and all(
            not isinstance(wanted, int) or wanted == size for wanted, size in pairs
        )

    def _advice(self, shape: Sequence[int]) -> str:
        """What may be meant, where that is usual."""
        assert self.shape is not None
        rank = len(self.shape)
        if self.is_target and self.dtype is not None and self.dtype.kind in "iu" and len(shape) == rank + 1:
            return (
                "; is there a number for each class? y.argmax(1) makes labels, and soft_cross_entropy takes such rows"
            )
        if self.is_target and self.dtype is not None and self.dtype.kind in "iu" and len(shape) == rank > 1:
            return (
                "; labels of scores [N, C, ...] are [N, ...]. Are the scores [N, ..., C]? Then a loss of your own has "
                "to move their classes to axis 1: see 'Losses of your own' in docs/trainer.md"
            )
        fits = [
            (f"x.transpose({order})", [shape[axis] for axis in axes])
            for axes, order in (((0, 3, 1, 2), "0, 3, 1, 2"), ((0, 2, 3, 1), "0, 2, 3, 1"), ((0, 2, 1), "0, 2, 1"))
            if len(axes) == len(shape)
        ]
        for advice, permuted in fits:
            if self._admits(permuted):
                return f"; are its axes in another order? {advice} would fit"
        if rank > 1 and self._admits((1, *shape)):
            return "; is the axis of rows missing? x[None] is a batch of one row"
        if rank > 2 and self._admits((*shape[:1], 1, *shape[1:])):
            return "; is the axis of channels missing? x[:, None] would fit"
        inner = [size for size in self.shape[1:] if isinstance(size, int)]
        if len(inner) == rank - 1 and len(shape) > 1 and math.prod(inner) == math.prod(shape[1:]):
            sizes = ", ".join(map(str, inner))
            return f"; it has as many numbers in each row: x.reshape({', '.join(['len(x)', sizes])}) would fit"
        return ""


def _kind(dtype: np.dtype[Any]) -> str:
    """numpy's letter for a kind of type; bfloat16 and its like have none of their own."""
    return "f" if dtype.kind == "V" and "float" in dtype.name else dtype.kind


def _numbers_of_objects(array: np.ndarray, field: Field) -> np.ndarray:
    """Objects that are all numbers as an array of numbers; rows of different length are refused."""
    if array.dtype.kind != "O" or (field.dtype is not None and field.dtype.kind in "OUST"):
        return array
    try:
        found = np.array(array.tolist())
    except ValueError:
        found = array
    if found.dtype.kind == "O":
        kinds = sorted({type(item).__name__ for item in array.reshape(-1)[:1000]})
        if set(kinds) <= {"list", "ndarray", "tuple"}:
            raise ragged(str(field))
        raise OnwardError(f"{field} is an array of objects ({', '.join(kinds[:5])}); give arrays of numbers")
    return found


def ragged(what: str) -> OnwardError:
    return OnwardError(
        f"the rows of {what} have different lengths, so they are no array; pad them to one length, or give batches "
        "whose rows have the same length"
    )


def _shown(shape: Sequence[Dim]) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"

"""Batches of consecutive rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from onward.onnxcustom.training.excs import ProviderError, UnsupportedError, WrongValueError
from onward.onnxcustom.utils.onnxruntime_helper import get_ort_device, numpy_to_ort_value, ort_device_to_string


class OrtDataLoader:
    """Yields batches of `batch_size` consecutive rows, as many as it takes for as many rows as there are.

    Args:
        X: features.
        y: labels; a vector becomes a column.
        sample_weight: a weight for each row, or None.
        batch_size: where there are fewer rows, or it is not above 0, one batch has all of them.
        device: where tensors are kept.
        random_iter: each batch starts at a row drawn from numpy.random, with replacement; otherwise batches follow one
            another, and the last one starts early enough to be full.
    """

    def __init__(
        self,
        X: np.ndarray,
        y: np.ndarray,
        sample_weight: np.ndarray | None = None,
        batch_size: int = 20,
        device: Any = "cpu",
        random_iter: bool = True,
    ) -> None:
        self.batch_size = batch_size
        self.device = get_ort_device(device)
        self.random_iter = random_iter
        self.X_np = np.ascontiguousarray(X)
        labels = np.ascontiguousarray(y)
        self.y_np = labels.reshape(-1, 1) if labels.ndim < 2 else labels
        self.w_np = None if sample_weight is None else np.ascontiguousarray(sample_weight).reshape(-1)
        for name, array in (("y", self.y_np), ("sample_weight", self.w_np)):
            if array is not None and array.shape[0] != self.X_np.shape[0]:
                raise WrongValueError(
                    f"X has {self.X_np.shape[0]} rows (shape {self.X_np.shape}), {name} {array.shape[0]}"
                )
        if not len(self.X_np):
            raise WrongValueError("there are no rows to learn from")
        self.desc = [(array.shape, array.dtype) for array in self.data_np]
        self._to_device()

    def _to_device(self) -> None:
        self.X_ort = numpy_to_ort_value(self.X_np, self.device)
        self.y_ort = numpy_to_ort_value(self.y_np, self.device)
        self.w_ort = None if self.w_np is None else numpy_to_ort_value(self.w_np, self.device)

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if not name.endswith("_ort")}
        return state | {"device": ort_device_to_string(self.device)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        self.device = get_ort_device(state["device"])
        self._to_device()

    def __repr__(self) -> str:
        device = ort_device_to_string(self.device)
        return f"{type(self).__name__}(..., ..., batch_size={self.batch_size!r}, device={device!r})"

    def __len__(self) -> int:
        """The number of rows."""
        return self.X_np.shape[0]

    @property
    def batch_rows(self) -> int:
        """How many rows a batch has."""
        return self.batch_size if 0 < self.batch_size < len(self) else len(self)

    @property
    def data_np(self) -> tuple[np.ndarray, ...]:
        """All data as arrays: features, labels and weights, if there are any."""
        return (self.X_np, self.y_np) if self.w_np is None else (self.X_np, self.y_np, self.w_np)

    @property
    def data_ort(self) -> tuple[Any, ...]:
        """All data as OrtValues."""
        return (self.X_ort, self.y_ort) if self.w_ort is None else (self.X_ort, self.y_ort, self.w_ort)

    def starts(self) -> Iterator[int]:
        """The first row of every batch of one pass."""
        rows = self.batch_rows
        last = len(self) - rows
        if last == 0:
            yield 0
            return
        for batch in range(math.ceil(len(self) / rows)):
            yield int(np.random.randint(0, last + 1)) if self.random_iter else min(batch * rows, last)

    def iter_numpy(self) -> Iterator[tuple[np.ndarray, ...]]:
        """Batches as arrays, views of the data."""
        if ort_device_to_string(self.device) != "cpu":
            raise ProviderError(f"arrays are in main memory, and the data is on {ort_device_to_string(self.device)}")
        rows = self.batch_rows
        for start in self.starts():
            yield tuple(array[start : start + rows] for array in self.data_np)

    def iter_ortvalue(self) -> Iterator[tuple[Any, ...]]:
        """Batches as OrtValues on the device."""
        rows = self.batch_rows
        for start in self.starts():
            if rows == len(self):
                yield self.data_ort
            else:
                batch = (array[start : start + rows] for array in self.data_np)
                yield tuple(numpy_to_ort_value(array, self.device) for array in batch)

    def iter_bind(self, bind: Any, names: Sequence[str]) -> Iterator[int]:
        """Bind each batch where it lies in memory, and yield its number of rows.

        Args:
            bind: what a session binds its inputs to.
            names: those of features, labels, weights if there are any, and of the learning rate, which is not bound.
        """
        if len(names) not in (3, 4):
            raise UnsupportedError(
                f"names are those of features, labels, maybe weights, and of the learning rate; given are {list(names)}"
            )
        bind = getattr(bind, "_iobinding", bind)
        rows = self.batch_rows
        for start in self.starts():
            for name, array, value in zip(names, self.data_np, self.data_ort, strict=False):
                row = array.dtype.itemsize * math.prod(array.shape[1:])
                address = value.data_ptr() + start * row
                bind.bind_input(name, self.device, array.dtype, (rows, *array.shape[1:]), address)
            yield rows

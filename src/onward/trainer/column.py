"""What users hold data in, as columns from which any rows can be taken: arrays, files, sparse matrices, tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from onward.errors import OnwardError
from onward.trainer.field import Field, ragged

Rows = np.ndarray | slice

# Arrays up to this size are converted to the type of the model once; larger ones batch by batch.
_CONVERT_AT_ONCE = 2**28


class Column(Protocol):
    """One value for each row."""

    shape: tuple[int, ...]
    is_in_memory: bool

    def __len__(self) -> int: ...

    def take(self, rows: Rows) -> np.ndarray: ...


class ArrayColumn:
    """An array, in memory or mapped from a file."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.shape = array.shape
        self.is_in_memory = not isinstance(array, np.memmap)

    def __len__(self) -> int:
        return len(self._array)

    def take(self, rows: Rows) -> np.ndarray:
        return np.asarray(self._array[rows])


class Repeated:
    """A scalar that belongs to every row."""

    is_in_memory = True

    def __init__(self, array: np.ndarray, rows: int) -> None:
        self._array, self._rows = array, rows
        self.shape = array.shape

    def __len__(self) -> int:
        return self._rows

    def take(self, rows: Rows) -> np.ndarray:
        return self._array


class SparseColumn:
    """The rows of a sparse matrix of scipy, made dense a batch at a time."""

    is_in_memory = False  # in another form

    def __init__(self, matrix: Any) -> None:
        self._matrix = matrix.tocsr()
        self.shape = tuple(matrix.shape)

    def __len__(self) -> int:
        return int(self._matrix.shape[0])

    def take(self, rows: Rows) -> np.ndarray:
        return np.asarray(self._matrix[rows].toarray())


class StoredColumn:
    """An array that is read where it lies, as those of h5py and zarr: these want rows in ascending order."""

    is_in_memory = False

    def __init__(self, stored: Any) -> None:
        self._stored = stored
        self.shape = tuple(stored.shape)

    def __len__(self) -> int:
        return int(self._stored.shape[0])

    def take(self, rows: Rows) -> np.ndarray:
        if isinstance(rows, slice):
            return np.asarray(self._stored[rows])
        order = np.argsort(rows)
        block = np.asarray(self._stored[rows[order]])
        result = np.empty_like(block)
        result[order] = block
        return result


def column(value: Any, field: Field) -> Column:
    """`value` as a column for `field`, checked as far as that is possible without reading all of it."""
    if is_sparse(value):
        if value.ndim != 2:
            raise OnwardError(f"{field} is a sparse array of rank {value.ndim}; give a matrix")
        made: Column = SparseColumn(value)
    elif _is_stored(value):
        made = StoredColumn(value)
    else:
        array = as_array(value, str(field))
        if array.ndim == 0:
            raise OnwardError(f"{field} is a single value ({value!r:.50}), not an array with a row for each sample")
        if not isinstance(array, np.memmap) and _size(array, field) <= _CONVERT_AT_ONCE:
            array = field.fit_dtype(array)
        made = ArrayColumn(array)
    if len(made):
        field.fitted_shape(made.shape)
        field.fit_dtype(made.take(slice(0, 1)))
    return made


def scalar(value: Any, field: Field, rows: int) -> Column:
    """A value for a field without an axis of rows."""
    return Repeated(field.fit(as_array(value, str(field))), rows)


def as_array(value: Any, what: str) -> np.ndarray:
    """Anything like an array as one of numpy, without a copy where that is possible."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise OnwardError(f"{what} is masked in places; fill them (.filled(...)), or leave these rows out")
    if isinstance(value, np.ndarray):
        return np.asarray(value) if isinstance(value, (np.ma.MaskedArray, np.matrix)) else value
    if is_sparse(value):
        return np.asarray(value.toarray())
    if hasattr(value, "detach"):
        return _from_torch(value, what)
    if is_series(value):
        return from_pandas(value)
    try:
        return np.asarray(value)
    except ValueError as error:
        if "inhomogeneous" in str(error):
            raise ragged(what) from None
        raise


def _from_torch(tensor: Any, what: str) -> np.ndarray:
    """A tensor of torch over the same memory; numpy has no bfloat16, and nothing on other devices."""
    tensor = tensor.detach()
    if getattr(tensor, "is_sparse", False) or str(getattr(tensor, "layout", "")).startswith("torch.sparse"):
        raise OnwardError(f"{what} is a sparse tensor; convert it with .to_dense()")
    tensor = tensor.cpu()
    if str(tensor.dtype) == "torch.bfloat16":
        tensor = tensor.float()
    return np.asarray(tensor.numpy())


def from_pandas(values: Any) -> np.ndarray:
    """A Series, an Index or a table of columns of one kind as an array; missing numbers are NaN."""
    array = np.asarray(values.to_numpy())
    if array.dtype.kind == "O":  # among others, columns that have a type of their own for missing values
        kinds = [values.dtype] if hasattr(values, "dtype") else list(values.dtypes)
        if all(getattr(kind, "kind", "O") in "iufb" for kind in kinds):
            return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))
    return array


def is_frame(value: Any) -> bool:
    """Whether this is a table of pandas, or like one."""
    return hasattr(value, "columns") and hasattr(value, "iloc") and hasattr(value, "dtypes")


def is_series(value: Any) -> bool:
    return hasattr(value, "to_numpy") and hasattr(value, "dtype")


def is_sparse(value: Any) -> bool:
    return hasattr(value, "tocsr") and hasattr(value, "toarray")


def is_arraylike(value: Any) -> bool:
    """Whether this has a type and a shape: arrays, tensors, Series, sparse matrices, data sets in files."""
    return hasattr(value, "shape") and hasattr(value, "dtype") and not is_frame(value)


def _is_stored(value: Any) -> bool:
    """Whether an array is in a file, behind an interface that reads parts of it."""
    if getattr(value, "reads_rows", False):  # our own, of the command
        return True
    module = type(value).__module__.partition(".")[0]
    return module in ("h5py", "zarr", "tables", "netCDF4") and hasattr(value, "shape")


def _size(array: np.ndarray, field: Field) -> int:
    item = array.itemsize if field.dtype is None else max(field.dtype.itemsize, array.itemsize)
    return array.size * item


def check_lengths(columns: Mapping[str, Column]) -> int:
    """The number of rows, which all columns have."""
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise OnwardError(f"inputs and targets must have the same number of rows, but {said}")
    rows = next(iter(lengths.values()), 0)
    if rows == 0:
        raise OnwardError(f"there is no data: {', '.join(map(repr, lengths)) or 'nothing'} has no rows")
    return rows

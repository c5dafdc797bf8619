"""Data in the types that graphs take."""

from __future__ import annotations

from typing import Any

import numpy as np

from onward.onnxcustom.training.excs import WrongValueError


def in_type_of(array: Any, dtype: np.dtype) -> np.ndarray:
    """Data as an array of the type that a graph takes; numbers only, and no integers of fractions."""
    data = np.asarray(array)
    if data.dtype == dtype:
        return data
    if data.dtype.kind not in "fiub":
        raise WrongValueError(f"data of type {data.dtype} are no numbers; the graph takes {dtype}")
    converted = data.astype(dtype)
    if dtype.kind in "iu" and (converted != data).any():
        raise WrongValueError(f"the graph takes {dtype}, and the data, {data.dtype}, would lose something by that")
    return converted


def binary_labels(labels: Any) -> np.ndarray:
    """Labels 0 and 1: of others, the log loss would be some number, too."""
    data = in_type_of(labels, np.dtype(np.int64))
    if not np.isin(data, (0, 1)).all():
        found = np.unique(data[~np.isin(data, (0, 1))])
        raise WrongValueError(f"the log loss takes labels 0 and 1, and there is {found[0]}")
    return data

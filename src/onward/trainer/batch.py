"""What a step is fed, made of the values that belong to the inputs of a model."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from onward.errors import OnwardError
from onward.trainer.assignment import SAMPLE_WEIGHT, Fields, Named
from onward.trainer.column import as_array
from onward.trainer.field import Field


class Batch(NamedTuple):
    """What a step is fed."""

    feeds: dict[str, np.ndarray]
    rows: int
    weight: np.ndarray | None = None  # of each row; among the feeds too


# What is left for a process where a batch has fewer rows than there are processes.
NOTHING = Batch({}, 0)


def make_batch(named: Named, fields: Fields) -> Batch:
    """Values as the model takes them."""
    feeds = {field.name: field.fit(as_array(named[field.name], str(field))) for field in fields.needed}
    first = next((field for field in fields.needed if field.has_rows), None)
    rows = len(feeds[first.name]) if first is not None and feeds[first.name].ndim else 1
    if rows == 0:
        raise OnwardError("it has no rows")
    for field in fields.needed:
        _check_rows(field, feeds[field.name], rows, first)
    weight = _weight(named.get(SAMPLE_WEIGHT), rows, fields)
    if weight is not None and fields.weight is not None:
        feeds[fields.weight.name] = weight
    return Batch(feeds, rows, weight)


def _check_rows(field: Field, array: np.ndarray, rows: int, first: Field | None) -> None:
    """See that all fields whose first axis is that of the rows have as many; the graph checks the others."""
    if field.batch is not None and len(array) != field.batch:
        raise OnwardError(f"{field} takes batches of exactly {field.batch} rows, not {len(array)}")
    if first is None or not field.shape or not first.shape or not isinstance(first.shape[0], str):
        return
    if field.shape[0] == first.shape[0] and len(array) != rows:
        raise OnwardError(f"{first} has {rows} rows, but {field} has {len(array)}")


def _weight(given: object, rows: int, fields: Fields) -> np.ndarray | None:
    if not fields.needs_targets:
        return None
    if fields.weight is None:
        if given is not None:
            raise OnwardError(
                "weights of rows are given, but the loss takes none; make the Trainer with sample_weight=True"
            )
        return None
    if given is None:
        return np.ones(rows, fields.weight.dtype or np.float32)
    weight = fields.weight.fit(as_array(given, str(fields.weight)))
    if weight.shape != (rows,):
        raise OnwardError(f"`sample_weight` is a number for each of {rows} rows, but has shape {list(weight.shape)}")
    return weight

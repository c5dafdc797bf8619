"""Rows to learn from, and rows to test with."""

from __future__ import annotations

from typing import Any

import numpy as np

from onward.errors import OnwardError

Array = np.ndarray[Any, Any]


def divided(rows: int, share: float, strata: Array | None, seed: int) -> tuple[Array, Array]:
    """Two sets of rows; the second has the given share, of each class if there are classes."""
    if not 0 < share < 1:
        raise OnwardError(f"--validation is a share between 0 and 1, 0 for none, or more data, not {share}")
    random = np.random.default_rng([seed % 2**64, 2**32])
    drawn = random.permutation(rows)
    if strata is not None:
        # Rows of one class after another, in random order within it, and every 1/share-th of them.
        drawn = drawn[np.argsort(strata[drawn], kind="stable")]
        places = np.floor((np.arange(rows) + 1) * share) > np.floor(np.arange(rows) * share)
        kept = drawn[places]
    else:
        kept = drawn[: round(rows * share)]
    kept = kept[: rows - 1] if len(kept) else drawn[:1]
    if rows < 2:
        raise OnwardError("there is one row only, of which no part can be kept for validation: --validation 0")
    second = np.sort(kept)
    return np.setdiff1d(np.arange(rows), second), second

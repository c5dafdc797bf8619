"""What several processes have found, against what one finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.distributed.scenarios import SCENARIOS

# Sums over rows in another order: a few of the last bits of float32, carried through a few dozen updates.
CLOSE = {"rtol": 2e-4, "atol": 2e-6}


def of_one(name: str, folder: Path) -> Any:
    return SCENARIOS[name](None, folder)


def assert_same(x: Any, y: Any, **tolerance: float) -> None:
    """Equal bit by bit, or but for a tolerance."""
    assert type(x) is type(y)
    if isinstance(x, dict):
        assert x.keys() == y.keys()
        for key in x:
            assert_same(x[key], y[key], **tolerance)
    elif isinstance(x, (list, tuple)):
        assert len(x) == len(y)
        for one, other in zip(x, y, strict=True):
            assert_same(one, other, **tolerance)
    elif isinstance(x, (np.ndarray, float)) and tolerance:
        np.testing.assert_allclose(x, y, **tolerance)
    else:
        np.testing.assert_array_equal(x, y)

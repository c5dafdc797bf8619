"""Rows of data as batches for a model, in the order that scikit-learn's MLP draws."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from onward.sklearn.error import EstimatorError
from onward.sklearn.network import Network, dense

_LARGE = 2**16  # numbers


class Batch(NamedTuple):
    """What a step is fed."""

    feeds: dict[str, np.ndarray]
    rows: int


class Rows:
    """Features, targets and weights; a sparse X is made dense batch by batch.

    Args:
        targets: what the loss takes besides the model's scores, by name.
        random: shuffles the rows before each epoch, from the order of the epoch before; None leaves them as they are.
    """

    def __init__(
        self,
        network: Network,
        X: Any,  # noqa: N803  scikit-learn's name
        targets: dict[str, np.ndarray],
        *,
        batch_size: int,
        random: np.random.RandomState | None,
    ) -> None:
        self._network, self._features, self._targets = network, X, targets
        self._size, self._random = batch_size, random
        self._order = np.arange(X.shape[0])
        fixed = network.fixed_rows
        if fixed is not None and (batch_size != fixed or X.shape[0] % fixed):
            raise EstimatorError(
                f"the model takes batches of exactly {fixed} rows, but {X.shape[0]} rows are to be trained on in "
                f"batches of {batch_size}. Use batch_size={fixed} and a number of rows that {fixed} divides, or export "
                "the model with a batch axis that may change"
            )
        self.steps: int | None = math.ceil(X.shape[0] / batch_size)

    @property
    def ahead(self) -> int:
        """How many batches are worth being prepared ahead: of small ones, a thread costs more than they do."""
        numbers = self._size * math.prod(self._features.shape[1:])
        return 2 if numbers >= _LARGE or hasattr(self._features, "toarray") else 0

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch."""
        if self._random is not None:
            drawn = np.arange(len(self._order))
            self._random.shuffle(drawn)
            self._order = self._order[drawn]
        for first in range(start * self._size, len(self._order), self._size):
            chosen: Any = (
                slice(first, first + self._size) if self._random is None else self._order[first : first + self._size]
            )
            feeds = self._network.feeds(dense(self._features[chosen]))
            feeds.update((name, array[chosen]) for name, array in self._targets.items())
            yield Batch(feeds, min(self._size, len(self._order) - first))

"""Rows of data as batches for a model, in the order that scikit-learn's MLP draws."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from onward.sklearn.network import Network, dense


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
        self.steps: int | None = math.ceil(X.shape[0] / batch_size)

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

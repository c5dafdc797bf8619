"""Several questions of yes and no about each row: how well each is answered."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from onward.metrics.base import ratio
from onward.metrics.decoding import Scores
from onward.report.figure import percent, shown
from onward.report.markup import Markup, name_of, table, tag

_LABELS = 200


class Labels:
    """Counts for each question, added up from batch to batch."""

    def __init__(self, names: Mapping[int, str] | None = None) -> None:
        self._names = dict(names or {})
        self.counts: np.ndarray | None = None  # [L, 3]: is, predicted, both

    def add(self, scores: Scores) -> None:
        """Take the rows of a batch."""
        is_so, said = scores.labels == 1, scores.predicted == 1
        counts = np.stack([is_so.sum(0), said.sum(0), (is_so & said).sum(0)], axis=1)
        self.counts = counts if self.counts is None else self.counts + counts


def labels_block(labels: Labels) -> Markup:
    """A table of the questions, those first that are answered worst."""
    assert labels.counts is not None
    found, said, both = labels.counts.T
    recall, precision = ratio(both, found), ratio(both, said)
    score = ratio(2 * both, found + said, 1.0)
    order = np.argsort(score, kind="stable")[:_LABELS]
    rows = [
        (name_of(labels._names.get(int(i), str(i))), shown(int(found[i])), shown(int(said[i])), percent(recall[i]),
         percent(precision[i]), shown(float(score[i])))
        for i in order
    ]  # fmt: skip
    caption = "Each label by itself, those with the lowest F1 first"
    if len(score) > _LABELS:
        caption += f"; {_LABELS} of {shown(len(score))}"
    made = table(["label", "is", "predicted", "recall", "precision", "F1"], rows, caption)
    return tag("div", tag("h3", "Labels"), made, class_="card")

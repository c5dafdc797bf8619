"""Data of any kind, as batches for the model of a trainer and for this one of its processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onward.errors import OnwardError
from onward.trainer.data import Source, divided, source
from onward.trainer.field import Field
from onward.trainer.likeness import require_alike
from onward.trainer.part import WHOLE, Part
from onward.trainer.team import Team


class Supply:
    """Makes sources.

    Args:
        fields: what a step is fed.
        seed: what orders and splits are drawn from.
    """

    def __init__(self, fields: Sequence[Field], team: Team, seed: int) -> None:
        self._fields, self._team, self._seed = fields, team, seed

    def source(self, data: Any, targets: Any = None, *, part: Part | None = None, **options: Any) -> Source:
        """Batches of some data, of which each process takes its part; or another one, such as all."""
        taken = self._team.part if part is None else part
        made = source(data, targets, inputs=self._fields, seed=self._seed, part=taken, **options)
        if taken != WHOLE:
            require_alike(made, self._team)
        return made

    def training_and_validation(
        self, data: Any, targets: Any, validation: Any, *, batch_size: int, shuffle: Any, sample_weight: Any
    ) -> tuple[Source, Source | None]:
        """What is learned from, and what it is tested with: other data, or a part of the rows."""
        made = self.source(data, targets, batch_size=batch_size, shuffle=shuffle, sample_weight=sample_weight)
        if validation is None:
            return made, None
        if not isinstance(validation, (float, np.floating)):
            return made, self.source(validation, batch_size=batch_size, shuffle=False)
        if not 0 < validation < 1:
            raise OnwardError(f"`validation` is more data, or a part of the rows between 0 and 1, not {validation}")
        return divided(made, float(validation), self._seed)

"""The optimizer of a `Trainer`, with what is said beside it."""

from __future__ import annotations

import dataclasses
from typing import Any

from onward import optim
from onward.errors import OnwardError
from onward.optim import GlobalNorm, Optimizer, Transformation


def recipe(optimizer: Any, learning_rate: float | None, clip: Any) -> Optimizer:
    """The optimizer of that name, or that is given, with another learning rate and another clipping."""
    options: dict[str, Any] = {} if learning_rate is None else {"learning_rate": learning_rate}
    if not isinstance(optimizer, Optimizer):
        return optim.get(optimizer, **options, **({} if clip is None else {"clip": clip}))
    if clip is not None:
        if optimizer.global_norm is not None and not isinstance(clip, Transformation):
            raise OnwardError("the optimizer clips its gradients already; leave `clip` out")
        if isinstance(clip, Transformation):
            options["transformation"] = optim.chain(clip, optimizer.transformation)
        else:
            options["global_norm"] = clip if isinstance(clip, GlobalNorm) else GlobalNorm(float(clip))
    return dataclasses.replace(optimizer, **options)

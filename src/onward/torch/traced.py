"""Functions that torch's older exporter writes for some numbers only, by other ones, while a module is traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.nn import _reduction
from torch.overrides import TorchFunctionMode

_NO_THRESHOLD = 20


class Traced(TorchFunctionMode):
    """Replaces what is called."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _TRACED.get(func, func)(*args, **(kwargs or {}))


def _log_sigmoid(x: Tensor) -> Tensor:
    """-log(1 + exp(-x)), where log(sigmoid(x)) is infinite."""
    return -F.softplus(-x)


def _cross_entropy_of_logits(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """(1 - t) x + (1 + (p - 1) t) log(1 + exp(-x))."""
    if size_average is not None or reduce is not None:
        reduction = _reduction.legacy_get_string(size_average, reduce)
    share = 1 if pos_weight is None else 1 + (pos_weight - 1) * target
    losses = (1 - target) * x + share * F.softplus(-x)
    if weight is not None:
        losses = losses * weight
    return losses if reduction == "none" else losses.sum() if reduction == "sum" else losses.mean()


def _softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    """x above a threshold, of which the exporter knows nothing; at the usual one there is no difference."""
    y = F.softplus(x, beta, threshold)
    return y if threshold >= _NO_THRESHOLD else torch.where(x * beta > threshold, x, y)


_TRACED: dict[Any, Callable[..., Any]] = {
    F.logsigmoid: _log_sigmoid,
    F.binary_cross_entropy_with_logits: _cross_entropy_of_logits,
    F.softplus: _softplus,
}

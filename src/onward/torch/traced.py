"""Functions that torch's older exporter writes for some numbers only, by other ones, while a module is traced."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.nn import _reduction

_NO_THRESHOLD = 20
_plain_softplus = F.softplus
# A second thread would take the words of the first one for torch's, and leave them behind.
_lock = threading.RLock()


@contextlib.contextmanager
def traceable_words() -> Iterator[None]:
    """Replace the functions in the file that has them: a mode would stand between the tracer and the user's code."""
    with _lock:
        before = {name: getattr(F, name) for name in _WORDS}
        try:
            for name, function in _WORDS.items():
                setattr(F, name, function)
            yield
        finally:
            for name, function in before.items():
                setattr(F, name, function)


def _log_sigmoid(x: Tensor) -> Tensor:
    """-log(1 + exp(-x)), where log(sigmoid(x)) is infinite."""
    return -_plain_softplus(-x)


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
    losses = (1 - target) * x + share * _plain_softplus(-x)
    if weight is not None:
        losses = losses * weight
    return losses if reduction == "none" else losses.sum() if reduction == "sum" else losses.mean()


def _softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    """x above a threshold, of which the exporter knows nothing; at the usual one there is no difference."""
    y = _plain_softplus(x, beta, threshold)
    return y if threshold >= _NO_THRESHOLD else torch.where(x * beta > threshold, x, y)


_WORDS: dict[str, Callable[..., Tensor]] = {
    "logsigmoid": _log_sigmoid,
    "binary_cross_entropy_with_logits": _cross_entropy_of_logits,
    "softplus": _softplus,
}

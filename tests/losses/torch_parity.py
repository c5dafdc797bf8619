"""Compare a loss with torch's function of the same options, in value and gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from onward.losses import Loss
from onward.testing import check_loss


def check_against_torch(
    loss: Loss,
    reference: Callable[..., torch.Tensor],
    predictions: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
    options: dict[str, Any] | None = None,
    **checks: Any,
) -> None:
    """`reference` takes predictions, then targets, then the same options, in which lists are tensors.

    What the reductions share is checked once, for the rows themselves.
    """
    options = options or {}
    if options.get("reduction") in ("mean", "sum"):
        checks = {"differences": False, "on_runtime": ["symbolic"], **checks}
    inputs = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in predictions]
    expected = reference(*inputs, *(torch.tensor(t) for t in targets), **{k: _tensor(v) for k, v in options.items()})
    gradients = torch.autograd.grad(expected.sum(), inputs)
    check_loss(
        functools.partial(loss, **options),
        predictions,
        targets,
        expected.detach().numpy(),
        [gradient.numpy() for gradient in gradients],
        **checks,
    )


def _tensor(option: Any) -> Any:
    return torch.tensor(option, dtype=torch.float64) if isinstance(option, (list, np.ndarray)) else option


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def uniform(*shape: int, low: float = 0.0, high: float = 1.0, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, size=shape)


def labels(*shape: int, classes: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, classes, size=shape)


def signs(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).choice([-1.0, 1.0], size=shape)

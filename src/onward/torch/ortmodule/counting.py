"""Identities and histograms, in words that exporters write rightly; None where torch's own will do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def eye(n: int, m: int | None = None, *, dtype: torch.dtype | None = None, **options: Any) -> Tensor | None:
    """An identity of booleans or whole numbers, for which onnxruntime has no kernel."""
    if dtype is None or dtype.is_floating_point or dtype.is_complex or "out" in options:
        return None
    return (torch.arange(n).unsqueeze(1) == torch.arange(n if m is None else m)).to(dtype)


def histogram(
    x: Tensor,
    bins: int = 100,
    min: float = 0,  # noqa: A002  torch's names
    max: float = 0,  # noqa: A002
) -> Tensor | None:
    """How many elements are in each of several parts of equal length; the last one has its end, too."""
    if min >= max:  # torch takes the smallest and the largest element
        return None
    flat = x.detach().reshape(-1)
    inside = (flat >= min) & (flat <= max)
    place = torch.where(inside, (flat - min) * bins / (max - min), 0.0).to(torch.int64).clamp(max=bins - 1)
    return flat.new_zeros(bins).index_add(0, place, inside.to(x.dtype))

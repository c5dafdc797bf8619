"""Attention in words that exporters know for tensors of any rank, and for rows that a mask hides from end to end."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def written_out(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(scale q k^T + mask) v; rows that see nothing are zeros."""
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is None:
        weights = scores.softmax(-1)
    else:
        is_seen = attn_mask if attn_mask.dtype is torch.bool else attn_mask > -torch.inf
        hidden = ~is_seen.any(-1, keepdim=True)
        scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype is torch.bool else scores + attn_mask
        # Before it, too: the gradient of a softmax of nothing is no number, whatever its result is taken for.
        weights = scores.masked_fill(hidden, 0.0).softmax(-1).masked_fill(hidden, 0.0)
    return F.dropout(weights, dropout_p) @ value if dropout_p else weights @ value

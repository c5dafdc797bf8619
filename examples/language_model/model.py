"""The language model: which word comes next, by a transformer that only looks back."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class PositionalEncoding(nn.Module):
    """Adds where a word stands: sines and cosines of its place, with wavelengths from 2 pi to 10000 times that."""

    def __init__(self, width: int, dropout: float = 0.1, longest: int = 5000) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        places = torch.arange(longest, dtype=torch.float32).unsqueeze(1)
        frequencies = torch.exp(torch.arange(0, width, 2, dtype=torch.float32) * (-math.log(10000.0) / width))
        table = torch.zeros(longest, 1, width)
        table[:, 0, 0::2] = torch.sin(places * frequencies)
        table[:, 0, 1::2] = torch.cos(places * frequencies)
        self.register_buffer("pe", table)

    def forward(self, x: Tensor) -> Tensor:
        """x `[length, batch, width]`."""
        return self.dropout(x + self.pe[: x.size(0)])


class TransformerModel(nn.Module):
    """From words `[length, batch]`, scores of each word of the vocabulary to be the next, `[length, batch, words]`."""

    def __init__(self, words: int, width: int, heads: int, hidden: int, layers: int, dropout: float = 0.5) -> None:
        super().__init__()
        self.width = width
        self.pos_encoder = PositionalEncoding(width, dropout)
        layer = nn.TransformerEncoderLayer(width, heads, hidden, dropout)
        self.transformer_encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.encoder = nn.Embedding(words, width)
        self.decoder = nn.Linear(width, words)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, src: Tensor) -> Tensor:
        length = src.size(0)
        # -inf where a word comes later than the one that looks for it.
        mask = torch.full((length, length), -math.inf, device=src.device).triu(1)
        x = self.pos_encoder(self.encoder(src) * math.sqrt(self.width))
        # To be told that the mask is causal spares torch to look, which its exporter could not follow.
        return self.decoder(self.transformer_encoder(x, mask, is_causal=True))

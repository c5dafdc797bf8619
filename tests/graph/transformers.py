"""Small transformers in the shape in which onnxruntime's optimizers recognise and fuse them."""

from __future__ import annotations

import io
import math
import warnings

import onnx
import torch
from torch import Tensor, nn

WIDTH, HEADS, WORDS, LENGTH = 16, 2, 11, 8


class SelfAttention(nn.Module):
    """Attention as it is written in BERT and GPT-2: projections apart or in one, heads by view and permute."""

    def __init__(self, joined: bool) -> None:
        super().__init__()
        self.joined = joined
        if joined:
            self.c_attn = nn.Linear(WIDTH, 3 * WIDTH)
        else:
            self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.output = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        parts = self.c_attn(x).split(WIDTH, dim=2) if self.joined else (self.query(x), self.key(x), self.value(x))
        q, k, v = (part.view(*part.shape[:2], HEADS, WIDTH // HEADS).permute(0, 2, 1, 3) for part in parts)
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(WIDTH // HEADS) + mask
        mixed = torch.matmul(torch.softmax(scores, dim=-1), v).permute(0, 2, 1, 3).contiguous()
        return self.output(mixed.view(*mixed.shape[:2], WIDTH))


class BertLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = SelfAttention(joined=False)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.first(self.attention(x, mask) + x)
        return self.second(self.down(nn.functional.gelu(self.up(x))) + x)


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions, self.segments = (nn.Embedding(count, WIDTH) for count in (WORDS, LENGTH, 2))
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(BertLayer() for _ in range(2))
        self.head = nn.Linear(WIDTH, 3)
        self.register_buffer("position_ids", torch.arange(LENGTH).expand(1, -1))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        positions = self.position_ids[:, : input_ids.shape[1]]
        x = self.norm(self.words(input_ids) + self.segments(token_type_ids) + self.positions(positions))
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * -10000.0
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


class GptLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = SelfAttention(joined=True)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attention(self.first(x), mask)
        return x + self.down(_gelu_new(self.up(self.second(x))))


def _gelu_new(x: Tensor) -> Tensor:
    """The tanh approximation as GPT-2 writes it."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(GptLayer() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.register_buffer("future", torch.full((LENGTH, LENGTH), -10000.0).triu(1))

    def forward(self, input_ids: Tensor) -> Tensor:
        length = input_ids.shape[1]
        x = self.words(input_ids) + self.positions(torch.arange(length))
        for layer in self.layers:
            x = layer(x, self.future[:length, :length])
        return torch.matmul(self.norm(x), self.words.weight.t())


def exported(module: nn.Module, inputs: dict[str, Tensor], opset: int) -> onnx.ModelProto:
    """The module by torch's older exporter, whose graphs onnxruntime's optimizers are written for."""
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():  # equal ones, as in new normalisations, would be merged
            parameter += 0.02 * torch.randn(parameter.shape, generator=noise)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(),
            tuple(inputs.values()),
            buffer,
            input_names=list(inputs),
            output_names=["logits"],
            dynamic_axes={name: {0: "batch", 1: "length"} for name in (*inputs, "logits")},
            opset_version=opset,
            dynamo=False,
        )
    return onnx.load_from_string(buffer.getvalue())

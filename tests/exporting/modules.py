"""Modules whose parameters exporters merge: fresh ones, with biases of zeros and norms of ones."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import onnx
import torch
from torch import Tensor, nn


class Layer(nn.Module):
    """Attention and a feed-forward network, each with its norm afterwards, as in BERT."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out, self.out_norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.down_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self._heads(project(x)) for project in (self.query, self.key, self.value))
        weights = self.dropout(torch.softmax(q @ k.transpose(-1, -2) / 2.0, -1))
        context = (weights @ v).transpose(1, 2).flatten(2)
        x = self.out_norm(x + self.dropout(self.out(context)))
        return self.down_norm(x + self.dropout(self.down(nn.functional.gelu(self.up(x)))))

    @staticmethod
    def _heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (2, -1)).transpose(1, 2)


class Bert(nn.Module):
    """A fresh one, initialised as Hugging Face does: normal weights, zero biases, unit norms."""

    def __init__(self, layers: int = 2, width: int = 8, tied: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(11, width), nn.Embedding(6, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(Layer(width, dropout) for _ in range(layers))
        self.pooler, self.head = nn.Linear(width, width), nn.Linear(width, 11)
        if tied:
            self.head.weight = self.words.weight
        self.register_buffer("ids", torch.arange(6)[None])
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.3)
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.words(tokens) + self.positions(self.ids[:, : tokens.shape[1]]))
        for layer in self.layers:
            x = layer(x)
        return self.head(torch.tanh(self.pooler(x[:, 0])))


class Cnn(nn.Module):
    """Convolutions with and without bias before BatchNorm, Dropout, and a head."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(2, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 8, 3, groups=2), nn.BatchNorm2d(8, momentum=0.3)
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(8 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.bn1(self.conv1(x))), 2)
        x = torch.relu(self.bn2(self.conv2(x)))
        return self.head(self.dropout(x.flatten(1)))


def tokens(batch: int = 4) -> Tensor:
    return torch.randint(0, 11, (batch, 6))


def pictures(batch: int = 16) -> Tensor:
    return torch.randn(batch, 2, 8, 8)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Only torch's own code runs in here; its notes about deprecation and tracing are not about ours."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logger.setLevel(level)


def export_dynamo(module: nn.Module, x: Tensor, **options: Any) -> onnx.ModelProto:
    with silent():
        program = torch.onnx.export(module, (x,), dynamo=True, verbose=False, **options)
    assert program is not None
    return program.model_proto


def export_legacy(module: nn.Module, x: Tensor, **options: Any) -> onnx.ModelProto:
    file = io.BytesIO()
    with silent():
        torch.onnx.export(module, (x,), file, dynamo=False, opset_version=17, **options)  # type: ignore[arg-type]
    return onnx.load_from_string(file.getvalue())

"""What `benchmarks.ortmodule` trains: modules of torch with their losses."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import works

ROOT = Path(__file__).parent.parent
Loss = Callable[[nn.Module, int], Tensor]  # of a module, and the number of a step


@dataclass(frozen=True)
class Case:
    """One row of the table; `target` is our time by torch's, from the project's goals."""

    title: str
    target: float
    build: Callable[[], nn.Module]
    prepare: Callable[[], Loss]

    def module(self) -> nn.Module:
        torch.manual_seed(0)
        return self.build().train()


def _work(name: str, title: str, target: float) -> Case:
    work = works.WORKS[name]

    def prepare() -> Loss:
        x, y = map(torch.from_numpy, work.data())
        return lambda module, index: nn.functional.cross_entropy(module(x[index % len(x)]), y[index % len(y)])

    return Case(title, target, work.build, prepare)


def _language_model(words: int, title: str) -> Case:
    """The sample of getting started: its sizes, its Dropout, 35 words of 20 columns."""

    def build() -> nn.Module:
        place = ROOT / "examples" / "language_model" / "model.py"
        spec = importlib.util.spec_from_file_location("language_model", place)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.TransformerModel(words, 200, 2, 200, 2, 0.2)

    def prepare() -> Loss:
        tokens = _tokens(words, (works.BATCHES, 36, 20))

        def loss(module: nn.Module, index: int) -> Tensor:
            text = tokens[index % len(tokens)]
            return nn.functional.cross_entropy(module(text[:-1]).view(-1, words), text[1:].reshape(-1))

        return loss

    return Case(title, 1.0, build, prepare)


def _bert(layers: int, width: int, batch: int, length: int, title: str) -> Case:
    """Classification of sentences, some of them padded."""

    def build() -> nn.Module:
        from transformers import BertConfig, BertForSequenceClassification

        config = BertConfig(
            vocab_size=30522,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=width // 64,
            intermediate_size=4 * width,
        )
        model: nn.Module = BertForSequenceClassification(config)
        return model

    def prepare() -> Loss:
        tokens = _tokens(30522, (works.BATCHES, batch, length))
        mask = torch.ones(batch, length, dtype=torch.int64)
        mask[::2, length * 3 // 4 :] = 0
        labels = torch.arange(batch) % 2

        def loss(module: nn.Module, index: int) -> Tensor:
            returned: Any = module(input_ids=tokens[index % len(tokens)], attention_mask=mask, labels=labels)
            found: Tensor = returned.loss
            return found

        return loss

    return Case(title, 1.0, build, prepare)


def _small(title: str, build: Callable[[], nn.Module], *shape: int) -> Case:
    """A net of a few layers that tells ten classes apart."""

    def prepare() -> Loss:
        x = torch.from_numpy(np.random.default_rng(0).normal(size=(works.BATCHES, *shape)).astype(np.float32))
        y = torch.arange(shape[0]) % 10
        return lambda module, index: nn.functional.cross_entropy(module(x[index % len(x)]), y)

    return Case(title, 1.0, build, prepare)


def _dense(activation: Callable[[], nn.Module], *widths: int) -> nn.Sequential:
    layers = [[nn.Linear(*pair), activation()] for pair in itertools.pairwise(widths)]
    return nn.Sequential(*itertools.chain.from_iterable(layers), nn.Linear(widths[-1], 10))


def _lenet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten()),
        *_dense(nn.Tanh, 400, 120, 84),
    )


class _Recurrent(nn.Module):
    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.last = layer, nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.layer(x)[0][:, -1])
        return found


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
        self.layers, self.last = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.layers(x).mean(1))
        return found


def _tokens(words: int, shape: Sequence[int]) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, words, shape))


CASES = {
    "mlp": _work("mlp", "MLP 784-500-10, batch 64", 0.9),
    "cnn": _work("cnn", "CNN 28x28, batch 64", 0.9),
    "dense": _small("MLP 784-256-256-256-10, batch 64", lambda: _dense(nn.ReLU, 784, 256, 256, 256), 64, 784),
    "gelu": _small("MLP 20-64-64-64-64-10, GELU, batch 32", lambda: _dense(nn.GELU, 20, 64, 64, 64, 64), 32, 20),
    "lenet": _small("LeNet 28x28, batch 64", _lenet, 64, 1, 28, 28),
    "gru": _small("GRU 2 layers of 64, 32x20", lambda: _Recurrent(nn.GRU(16, 64, 2, batch_first=True), 64), 32, 20, 16),
    "lstm": _small("LSTM 64, 32x20", lambda: _Recurrent(nn.LSTM(16, 64, batch_first=True), 64), 32, 20, 16),
    "encoder": _small("transformer 2 layers, width 64, 16x32", _Encoder, 16, 32, 64),
    "mobilenet": _work("mobilenet", "MobileNetV2, 96x96, batch 16", 1.0),
    "lm-small": _language_model(2785, "language model, vocabulary 2,785, 35x20"),
    "lm": _language_model(28782, "language model, vocabulary 28,782, 35x20"),
    "bert-tiny": _bert(2, 128, 8, 128, "BERT 2 layers, width 128, 8x128"),
    "bert-small": _bert(4, 256, 8, 128, "BERT 4 layers, width 256, 8x128"),
}

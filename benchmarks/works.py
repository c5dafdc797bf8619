"""What is trained: models in torch, their data, and the forward ONNX model that the other peers start from."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

BATCHES = 4  # that the steps go through in turn


def mlp() -> nn.Module:
    """784 - 500 - 10, as in MNIST's first example everywhere."""
    return nn.Sequential(nn.Linear(784, 500), nn.ReLU(), nn.Linear(500, 10))


def cnn() -> nn.Module:
    """Two convolutions and two linear layers over 28 x 28."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU6()]


class InvertedResidual(nn.Module):
    """Expand, filter each channel by itself, project; add the input where the shapes allow it."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.residual = stride == 1 and inputs == outputs
        self.layers = nn.Sequential(
            *(_convolution(inputs, hidden, 1) if expansion > 1 else []),
            *_convolution(hidden, hidden, 3, stride, groups=hidden),
            *_convolution(hidden, outputs, 1)[:-1],
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(x)
        return x + y if self.residual else y


class MobileNetV2(nn.Module):
    """Sandler et al. 2018, table 2: 17 inverted residual blocks, 2.2 million parameters and a head."""

    # Expansion, channels, repetitions, stride of the first.
    BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))

    def __init__(self, classes: int = 10, *, head_only: bool = False) -> None:
        super().__init__()
        layers, channels = _convolution(3, 32, 3, 2), 32
        for expansion, outputs, repeats, stride in self.BLOCKS:
            for index in range(repeats):
                layers.append(InvertedResidual(channels, outputs, stride if index == 0 else 1, expansion))
                channels = outputs
        self.features = nn.Sequential(*layers, *_convolution(channels, 1280, 1))
        self.classifier = nn.Linear(1280, classes)
        self.head_only = head_only
        self.features.requires_grad_(not head_only)

    def train(self, mode: bool = True) -> MobileNetV2:
        super().train(mode)
        self.features.train(mode and not self.head_only)  # a frozen backbone keeps its running statistics
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(x).mean((2, 3)))


class Transformer(nn.Module):
    """Embedding, encoder layers, scores of the next token as `[tokens, vocabulary]`."""

    def __init__(self, vocabulary: int, d: int, heads: int, ff: int, layers: int, tokens: int, *, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, d)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.register_buffer("position", torch.randn(tokens, d) * 0.02)
        mask = torch.full((tokens, tokens), float("-inf")).triu(1)
        self.register_buffer("mask", mask)
        # Without dropout, whose random numbers would be different in each peer.
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(d, heads, ff, dropout=0.0, batch_first=True) for _ in range(layers)
        )
        for layer in self.layers:
            layer.dropout = layer.dropout1 = layer.dropout2 = nn.Identity()
        self.scores = nn.Linear(d, vocabulary)
        if tied:
            self.scores.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) * self.embedding.embedding_dim**0.5 + self.position
        for layer in self.layers:
            x = layer(x, src_mask=self.mask)
        return self.scores(x).flatten(0, 1)


def _dense(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(*_convolution(inputs, outputs, 3))


class Residual(nn.Module):
    """Dense 3x3 convolutions around a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(_dense(channels, channels), _dense(channels, channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


def resnet() -> nn.Module:
    """Eight residual blocks of dense convolutions."""
    blocks = [Residual(64) for _ in range(8)]
    return nn.Sequential(_dense(3, 64), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class UNet(nn.Module):
    """Down twice and up again; scores of each pixel as `[pixels, classes]`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = _dense(3, 32), _dense(32, 64), _dense(64, 128)
        self.up = nn.ModuleList([nn.ConvTranspose2d(128, 64, 2, 2), nn.ConvTranspose2d(64, 32, 2, 2)])
        self.merge = nn.ModuleList([_dense(128, 64), _dense(64, 32)])
        self.scores = nn.Conv2d(32, 10, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pool = nn.functional.max_pool2d
        one = self.first(x)
        two = self.second(pool(one, 2))
        y = self.third(pool(two, 2))
        for up, merge, skipped in zip(self.up, self.merge, (two, one), strict=True):
            y = merge(torch.cat([up(y), skipped], 1))
        return self.scores(y).permute(0, 2, 3, 1).flatten(0, 2)


def sounds() -> nn.Module:
    """1-D convolutions over samples, as key-word spotters have them."""
    layers = [
        layer
        for i, o, k, s in ((1, 32, 80, 16), (32, 32, 3, 1), (32, 64, 3, 1), (64, 64, 3, 1))
        for layer in (nn.Conv1d(i, o, k, s), nn.BatchNorm1d(o), nn.ReLU(), nn.MaxPool1d(4))
    ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 10))


class Recurrent(nn.Module):
    """An LSTM, and scores of its last output."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, 128, batch_first=True)
        self.scores = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scores(self.lstm(x)[0][:, -1])


@dataclass(frozen=True)
class Work:
    """One row of the table; `target` is our time by that of the best peer, from the project's goals."""

    title: str
    target: float  # NaN: none
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of one batch
    classes: int
    vocabulary: int = 0  # of inputs that are tokens
    learning_rate: float = 1e-3
    labels: int = 0  # of a batch, where there is more than one for a row

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return self.build().train()

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and labels, `[BATCHES, ...]`."""
        rng = np.random.default_rng(0)
        if self.vocabulary:
            x = rng.integers(0, self.vocabulary, (BATCHES, *self.shape))
            return x, rng.integers(0, self.classes, (BATCHES, int(np.prod(self.shape))))
        x = rng.normal(size=(BATCHES, *self.shape)).astype(np.float32)
        return x, rng.integers(0, self.classes, (BATCHES, self.labels or self.shape[0]))


WORKS = {
    "mlp": Work("MLP 784-500-10, batch 64", 0.6, mlp, (64, 784), 10),
    "cnn": Work("CNN 28x28, batch 64", 0.9, cnn, (64, 1, 28, 28), 10),
    "head": Work(
        "MobileNetV2 head only, 224x224, batch 4", 0.25, lambda: MobileNetV2(head_only=True), (4, 3, 224, 224), 10
    ),
    # Fifty layers that normalise by a batch of 16 amplify rounding: even float32 and float64 disagree in the third
    # digit of some gradients. At a small learning rate the losses can still be compared.
    "mobilenet": Work("MobileNetV2 full, 96x96, batch 16", 1.0, MobileNetV2, (16, 3, 96, 96), 10, learning_rate=1e-5),
    "transformer": Work(
        "transformer 4 layers, d 256, 512 tokens, vocabulary 2,000",
        0.9,
        lambda: Transformer(2000, 256, 4, 1024, 4, 64, tied=False),
        (8, 64),
        2000,
        2000,
    ),
    "lm": Work(
        "transformer LM 2 layers, d 200, 700 tokens, vocabulary 28,782, tied",
        0.65,
        lambda: Transformer(28782, 200, 2, 200, 2, 35, tied=True),
        (20, 35),
        28782,
        28782,
    ),
    # What PyTorch's own kernels are made for.
    "resnet": Work("ResNet, dense 3x3, 32x32, batch 16", math.nan, resnet, (16, 3, 32, 32), 10, learning_rate=1e-5),
    "unet": Work("U-Net 64x64, batch 4", math.nan, UNet, (4, 3, 64, 64), 10, learning_rate=1e-5, labels=4 * 64 * 64),
    "sounds": Work(
        "1-D convolutions, 16,000 samples, batch 8", math.nan, sounds, (8, 1, 16000), 10, learning_rate=1e-5
    ),
    "lstm": Work("LSTM 128, 50 steps, batch 16", math.nan, Recurrent, (16, 50, 64), 10),
}


def write(name: str, folder: Path, *, static: bool = False) -> None:
    """Put the forward model, the data and the names of the parameters of a work into a folder."""
    work = WORKS[name]
    folder.mkdir(parents=True, exist_ok=True)
    model, (x, y) = work.model(), work.data()
    np.savez(folder / "data.npz", x=x, y=y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own, about itself
        torch.onnx.export(
            model,
            (torch.from_numpy(x[0]),),
            folder / "forward.onnx",
            dynamo=False,
            opset_version=17,
            training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=False,
            input_names=["x"],
            output_names=["scores"],
            dynamic_axes=None if static else {"x": {0: "batch"}},
        )
    trainable = [key for key, parameter in model.named_parameters() if parameter.requires_grad]
    frozen = [key for key in model.state_dict() if key not in trainable]
    settings = {"work": name, "trainable": trainable, "frozen": frozen, "learning_rate": work.learning_rate}
    (folder / "work.json").write_text(json.dumps(settings))

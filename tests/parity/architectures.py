"""Small versions of well-known architectures, from plain torch modules, for comparing gradients with torch.

Each is a function that returns a module and its inputs; `@architecture` puts it into ARCHITECTURES. Modules use the
sizes, operators and idioms that make exporters emit what they emit for the real thing, at a width of a few channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Architecture:
    """A module with inputs, how it is exported, and further inputs to evaluate it on."""

    name: str
    build: Callable[[], tuple[nn.Module, Inputs]]
    training: bool = False
    exporters: tuple[str, ...] = ("legacy", "dynamo")
    oldest_opset: int = 12  # that the older exporter can write it in
    # Whether the newer exporter may optimize: it folds BatchNormalization into Conv and rows out of an embedding, after
    # which these parameters do not exist any more.
    optimize: bool = True
    # For each input the symbols of its dynamic axes, as both exporters take them: {"x": {0: "batch"}}.
    dynamic: dict[str, dict[int, str]] | None = None
    other_inputs: Callable[[], Inputs] | None = None


ARCHITECTURES: dict[str, Architecture] = {}


def architecture(**options) -> Callable[[Callable[[], tuple[nn.Module, Inputs]]], Callable]:
    """Register the decorated function under its name."""

    def register(build: Callable[[], tuple[nn.Module, Inputs]]) -> Callable:
        ARCHITECTURES[build.__name__] = Architecture(build.__name__, build, **options)
        return build

    return register


class Apply(nn.Module):
    """A function as a module, for nn.Sequential."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def tokens(*shape: int, below: int = 11) -> Tensor:
    return torch.randint(0, below, shape)


# Fully connected and convolutional ------------------------------------------------------------------------------------


@architecture()
def mlp():
    layers = [nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 7, bias=False), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(7, 4), nn.LogSoftmax(-1)), (torch.randn(5, 6),)


@architecture(dynamic={"x": {0: "batch"}}, other_inputs=lambda: (torch.randn(3, 1, 16, 16),))
def lenet():
    features = [nn.Conv2d(1, 3, 5, padding=2), nn.Sigmoid(), nn.AvgPool2d(2), nn.Conv2d(3, 4, 5), nn.Tanh()]
    head = [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 10), nn.ReLU(), nn.Linear(10, 5)]
    return nn.Sequential(*features, *head), (torch.randn(2, 1, 16, 16),)


class ResidualBlock(nn.Module):
    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.shortcut = nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(y + self.shortcut(x))


def _resnet():
    stem = [nn.Conv2d(3, 4, 7, 2, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)]
    return nn.Sequential(*stem, ResidualBlock(4, 6, 2), *head), (torch.randn(4, 3, 24, 24),)


@architecture(optimize=False)
def resnet_inference():
    return _resnet()


# The newer exporter writes BatchNormalization in inference mode even for a module in training mode.
@architecture(training=True, exporters=("legacy",))
def resnet_training():
    return _resnet()


class SqueezeExcite(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, 2, 1), nn.Conv2d(2, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale = functional.adaptive_avg_pool2d(x, 1)
        return x * functional.hardsigmoid(self.up(functional.relu(self.down(scale))))


@architecture(optimize=False)
def mobilenet():
    expand = [nn.Conv2d(4, 8, 1, bias=False), nn.BatchNorm2d(8), nn.Hardswish()]
    depthwise = [nn.Conv2d(8, 8, 3, 2, 1, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU6(), SqueezeExcite(8)]
    project = [nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4)]
    head = [Apply(lambda x: x.mean([2, 3])), nn.Linear(4, 3)]
    return nn.Sequential(*expand, *depthwise, *project, *head), (torch.randn(2, 4, 8, 8),)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = self._double(2, 4), self._double(4, 6)
        self.bottom = self._double(6, 8)
        self.up2, self.merge2 = nn.ConvTranspose2d(8, 6, 2, 2), self._double(12, 6)
        self.up1 = nn.Sequential(
            nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False), nn.Conv2d(6, 4, 3, padding=1)
        )
        self.merge1, self.head = self._double(8, 4), nn.Conv2d(4, 2, 1)

    @staticmethod
    def _double(width: int, out: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(width, out, 3, padding=1), nn.GroupNorm(2, out), nn.LeakyReLU(0.1))

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x)
        b = self.down2(functional.max_pool2d(a, 2))
        c = self.bottom(functional.max_pool2d(b, 2))
        b = self.merge2(torch.cat([self.up2(c), b], 1))
        a = self.merge1(torch.cat([self.up1(b), a], 1))
        return self.head(functional.interpolate(a, scale_factor=2, mode="nearest"))


@architecture()
def unet():
    return UNet(), (torch.randn(2, 2, 8, 8),)


class DenseLayer(nn.Module):
    def __init__(self, width: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, growth, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.layers(x)], 1)


@architecture()
def densenet():
    block = [DenseLayer(3, 2), DenseLayer(5, 2), DenseLayer(7, 2)]
    transition = [nn.Conv2d(9, 4, 1), nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False)]
    return nn.Sequential(*block, *transition, nn.Flatten(), nn.Linear(64, 3)), (torch.randn(2, 3, 7, 7),)


@architecture(oldest_opset=13)
def autoencoder():
    encoder = [
        nn.Conv2d(1, 4, 3, 2, 1),
        nn.ELU(),
        nn.Conv2d(4, 6, 3, 2, 1, bias=False),
        nn.InstanceNorm2d(6, affine=True),
        nn.SiLU(),
    ]
    code = [nn.Flatten(), nn.Linear(24, 5), nn.Softplus(), nn.Linear(5, 24), nn.Unflatten(1, (6, 2, 2))]
    decoder = [
        nn.ConvTranspose2d(6, 4, 3, 2, 1, output_padding=1),
        nn.PReLU(4),
        nn.ReflectionPad2d(1),
        nn.ConvTranspose2d(4, 4, 4, 2, 3, groups=2),
        nn.PixelShuffle(2),
        nn.Sigmoid(),
    ]
    return nn.Sequential(*encoder, *code, *decoder), (torch.randn(2, 1, 8, 8),)


class TextCNN(nn.Module):
    """Convolutions of several widths over word embeddings, maximum over time."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6, padding_idx=0)
        self.convs = nn.ModuleList(nn.Conv1d(6, 4, width) for width in (2, 3, 4))
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x).transpose(1, 2)
        pooled = [functional.relu(conv(h)).amax(2) for conv in self.convs]
        return functional.log_softmax(self.head(torch.cat(pooled, 1)), 1)


@architecture()
def text_cnn():
    return TextCNN(), (tokens(3, 9, below=10) + 1,)


# Transformers ---------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Multi-head self-attention from one projection to queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, width: int, heads: int, approximate: str = "none") -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(width), Attention(width, heads), nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(approximate=approximate), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.cls, self.position = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(1, 5, 8))
        self.blocks = nn.ModuleList(Block(8, 2) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.cls.expand(x.shape[0], -1, -1), h], 1) + self.position
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h)[:, 0])


@architecture(dynamic={"x": {0: "batch"}}, other_inputs=lambda: (torch.randn(3, 3, 8, 8),))
def vit():
    return ViT(), (torch.randn(2, 3, 8, 8),)


class BERT(nn.Module):
    """Embeddings of words, positions and segments, hand-written attention with a padding mask, post-norm, pooler."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions, self.segments = nn.Embedding(11, 8), nn.Embedding(12, 8), nn.Embedding(2, 8)
        self.register_buffer("position_ids", torch.arange(12)[None])
        self.norm = nn.LayerNorm(8, eps=1e-12)
        self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.out, self.out_norm = nn.Linear(8, 8), nn.LayerNorm(8)
        self.up, self.down, self.down_norm = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)
        self.pooler, self.classifier = nn.Linear(8, 8), nn.Linear(8, 2)

    def _split_heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], 2, 4).permute(0, 2, 1, 3)

    def forward(self, ids: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        positions = self.position_ids[:, : ids.shape[1]]
        h = self.norm(self.words(ids) + self.positions(positions) + self.segments(segments))
        bias = (1.0 - mask[:, None, None, :].to(h.dtype)) * torch.finfo(h.dtype).min
        q, k, v = (self._split_heads(project(h)) for project in (self.query, self.key, self.value))
        weights = functional.softmax(torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(4) + bias, dim=-1)
        context = (weights @ v).permute(0, 2, 1, 3).contiguous()
        h = self.out_norm(self.out(context.view(*context.shape[:-2], 8)) + h)
        h = self.down_norm(self.down(functional.gelu(self.up(h))) + h)
        return self.classifier(torch.tanh(self.pooler(h[:, 0])))


@architecture(optimize=False)
def bert():
    mask = torch.ones(2, 6, dtype=torch.int64)
    mask[1, 4:] = 0
    return BERT(), (tokens(2, 6), tokens(2, 6, below=2), mask)


# In training mode, because inference takes a fused fast path that the older exporter cannot follow.
@architecture(training=True, oldest_opset=14)
def transformer_encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, activation="gelu")
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(11, 8), encoder, nn.Linear(8, 3)), (tokens(2, 5),)


class GPT(nn.Module):
    """Causal mask in a buffer, learned positions, output layer tied to the embedding, next-token loss inside."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(11, 8), nn.Embedding(10, 8)
        self.register_buffer("causal", torch.tril(torch.ones(10, 10)).view(1, 1, 10, 10))
        self.blocks = nn.ModuleList(Block(8, 2, approximate="tanh") for _ in range(2))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        length = ids.shape[1]
        h = self.words(ids) + self.positions(torch.arange(length, device=ids.device))
        for block in self.blocks:
            h = block(h, self.causal[:, :, :length, :length])
        logits = self.head(self.norm(h))
        return functional.cross_entropy(logits.reshape(-1, 11), labels.reshape(-1), ignore_index=-100)


@architecture(optimize=False)
def gpt():
    ids = tokens(2, 7)
    labels = ids.roll(-1, 1)
    labels[:, -1] = -100
    return GPT(), (ids, labels)


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding: the two halves of each head are the parts of complex numbers."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], -1) * sin


class LlamaBlock(nn.Module):
    """RMSNorm, rotary embedding, grouped queries (4 heads over 2 of keys and values) and a SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(16), RMSNorm(16)
        self.q, self.k, self.v = (nn.Linear(16, width, bias=False) for width in (16, 8, 8))
        self.o = nn.Linear(16, 16, bias=False)
        self.gate, self.up, self.down = (nn.Linear(*size, bias=False) for size in ((16, 20), (16, 20), (20, 16)))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        h = self.norm1(x)
        q = rotate(self.q(h).view(batch, length, 4, 4).transpose(1, 2), cos, sin)
        k = rotate(self.k(h).view(batch, length, 2, 4).transpose(1, 2), cos, sin)
        v = self.v(h).view(batch, length, 2, 4).transpose(1, 2)
        k, v = (t[:, :, None].expand(-1, -1, 2, -1, -1).reshape(batch, 4, length, 4) for t in (k, v))
        h = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(h.transpose(1, 2).reshape(batch, length, 16))
        h = self.norm2(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(11, 16), nn.Linear(16, 11, bias=False)
        self.blocks, self.norm = nn.ModuleList(LlamaBlock() for _ in range(2)), RMSNorm(16)
        self.register_buffer("frequencies", 1.0 / 100 ** (torch.arange(0, 4, 2) / 4))

    def forward(self, ids: Tensor) -> Tensor:
        angles = torch.arange(ids.shape[1], device=ids.device)[:, None].float() * self.frequencies[None]
        angles = torch.cat([angles, angles], -1)
        h = self.words(ids)
        for block in self.blocks:
            h = block(h, angles.cos(), angles.sin())
        return self.head(self.norm(h))


@architecture(oldest_opset=14)
def llama():
    return Llama(), (tokens(2, 5),)


class DynamicEncoder(nn.Module):
    """A transformer block whose batch and length are both left open, with masked mean pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.block, self.head = nn.Embedding(11, 8), Block(8, 2), nn.Linear(8, 3)
        self.scale = nn.Parameter(torch.rand(8))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        h = self.block(self.words(ids) * self.scale, mask[:, None, None, :])
        kept = mask[:, :, None].to(h.dtype)
        return self.head((h * kept).sum(1) / kept.sum(1))


@architecture(
    dynamic={"ids": {0: "batch", 1: "length"}, "mask": {0: "batch", 1: "length"}},
    other_inputs=lambda: (tokens(4, 3), torch.ones(4, 3, dtype=torch.int64)),
)
def dynamic_encoder():
    mask = torch.ones(2, 6, dtype=torch.int64)
    mask[0, 5:] = 0
    return DynamicEncoder(), (tokens(2, 6), mask)


# A loss inside the model ----------------------------------------------------------------------------------------------


class Losses(nn.Module):
    """Cross entropy with class weights, mean squared, absolute and binary cross-entropy error, summed."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.classes, self.values = nn.Linear(6, 8), nn.Linear(8, 4), nn.Linear(8, 3)
        self.register_buffer("class_weights", torch.tensor([0.5, 1.0, 2.0, 1.5]))

    def forward(self, x: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
        h = torch.tanh(self.body(x))
        logits, values = self.classes(h), self.values(h)
        loss = functional.cross_entropy(logits, labels, weight=self.class_weights) + functional.mse_loss(
            values, targets
        )
        loss = loss + (values - targets).abs().sum()
        return loss + functional.binary_cross_entropy_with_logits(values, (targets > 0).to(values.dtype))


@architecture(
    dynamic={"x": {0: "batch"}, "labels": {0: "batch"}, "targets": {0: "batch"}},
    other_inputs=lambda: (torch.randn(3, 6), tokens(3, below=4), torch.randn(3, 3)),
)
def losses():
    return Losses(), (torch.randn(5, 6), tokens(5, below=4), torch.randn(5, 3))

"""Modules of different structure, each with arguments for a number of rows."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  as everybody calls it
from torch import Tensor, nn


class Function(nn.Module):
    """A function of the children and the arguments."""

    def __init__(self, function: Callable[..., Any], **children: nn.Module) -> None:
        super().__init__()
        for name, child in children.items():
            self.add_module(name, child)
        self.function = function

    def forward(self, *args: Tensor, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


class Recurrent(nn.Module):
    def __init__(self, layer: nn.Module, size: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(size, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, state = self.layer(x)
        last = state[0] if isinstance(state, tuple) else state
        return self.head(y), last


class Attention(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.qkv, self.out, self.dropout = nn.Linear(8, 24), nn.Linear(8, 8), dropout

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        rows, length, _ = x.shape
        q, k, v = (t.view(rows, length, 2, 4).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.dropout if self.training else 0.0)
        return self.out(y.transpose(1, 2).reshape(rows, length, 8))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embedding(ids)))


class Language(nn.Module):
    """A small transformer language model with positions in a buffer and a causal mask."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(13, 8)
        self.register_buffer("positions", torch.randn(32, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 13)

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        mask = torch.full((length, length), float("-inf")).triu(1)
        return self.head(self.encoder(self.embedding(ids) * 8**0.5 + self.positions[:length], mask=mask))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(8, 2, 16, 0.1, batch_first=True)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.layer(x, memory)


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


def _mlp(*sizes: int, act: Callable[[], nn.Module] = nn.ReLU) -> nn.Module:
    layers: list[nn.Module] = []
    for size, following in itertools.pairwise(sizes):
        layers += [nn.Linear(size, following), act()]
    return nn.Sequential(*layers[:-1])


def x(*sizes: int, grad: bool = False) -> Callable[[int], tuple[Any, ...]]:
    return lambda rows: (torch.randn(rows, *sizes, requires_grad=grad),)


def ids(length: int, count: int) -> Callable[[int], tuple[Any, ...]]:
    return lambda rows: (torch.randint(count, (rows, length)),)


# Name -> the module, and its arguments for a number of rows.
CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[Any, ...]]]] = {
    "mlp": (lambda: _mlp(4, 8, 8, 3), x(4)),
    "mlp with input gradients": (lambda: _mlp(4, 8, 3, act=nn.GELU), x(4, grad=True)),
    "cnn, batch norm, dropout": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.2),
            nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3),
        ),
        x(2, 8, 8),
    ),
    "residual": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2), Residual(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
        ),
        x(1, 9, 9),
    ),
    "lstm": (lambda: Recurrent(nn.LSTM(4, 5, batch_first=True), 5), x(6, 4)),
    "lstm, both directions, two layers": (
        lambda: Recurrent(nn.LSTM(4, 5, num_layers=2, bidirectional=True, batch_first=True), 10), x(6, 4)
    ),
    "lstm with dropout between layers": (
        lambda: Recurrent(nn.LSTM(4, 5, num_layers=2, dropout=0.3, batch_first=True), 5), x(6, 4, grad=True)
    ),
    "gru with dropout between layers": (
        lambda: Recurrent(nn.GRU(4, 5, num_layers=3, dropout=0.3, bidirectional=True), 10), x(6, 4)
    ),
    "gru": (lambda: Recurrent(nn.GRU(4, 5, batch_first=True), 5), x(6, 4)),
    "rnn": (lambda: Recurrent(nn.RNN(4, 5), 5), lambda rows: (torch.randn(6, rows, 4),)),
    "lstm cell in a loop": (lambda: _CellLoop(), x(3, 4)),
    "language model": (lambda: Language(), ids(5, 13)),
    "decoder layer": (lambda: Decoder(), lambda rows: (torch.randn(rows, 4, 8), torch.randn(rows, 6, 8))),
    "norm-first encoder": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.2, activation="gelu", batch_first=True, norm_first=True), x(5, 8)
    ),
    "attention with a mask": (
        lambda: Attention(0.2), lambda rows: (torch.randn(rows, 5, 8), torch.rand(rows, 1, 5, 5).round() * -1e4)
    ),
    "attention with a bool mask": (
        lambda: Attention(), lambda rows: (torch.randn(rows, 5, 8), torch.rand(rows, 1, 5, 5) > -0.5)
    ),
    "multi-head attention": (
        lambda: Function(
            lambda m, q, k: m.attention(q, k, k)[0], attention=nn.MultiheadAttention(8, 2, 0.1, batch_first=True)
        ),
        lambda rows: (torch.randn(rows, 3, 8), torch.randn(rows, 5, 8)),
    ),
    "embeddings": (
        lambda: Function(
            lambda m, i: m.head(m.table(i).mean(1)), table=nn.Embedding(9, 4, padding_idx=1), head=nn.Linear(4, 2)
        ),
        ids(5, 9),
    ),
    "tied weights": (Tied, ids(4, 11)),
    "grouped and depthwise convolution": (
        lambda: nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.Flatten(1)),
        x(4, 7, 7),
    ),
    "transposed convolution": (
        lambda: nn.Sequential(nn.ConvTranspose2d(3, 4, 3, stride=2, output_padding=1, padding=1), nn.Tanh()), x(3, 5, 5)
    ),
    "convolution in one dimension": (
        lambda: nn.Sequential(nn.Conv1d(3, 4, 3, dilation=2, padding="same"), nn.BatchNorm1d(4), nn.SiLU()), x(3, 9)
    ),
    "convolution in three dimensions": (lambda: nn.Sequential(nn.Conv3d(1, 2, 3), nn.AvgPool3d(2)), x(1, 6, 6, 6)),
    "layer norm": (lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Mish(), nn.Linear(6, 2)), x(3, 4)),
    "group norm": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ELU()), x(2, 6, 6)),
    "instance norm": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.Hardswish()), x(2, 6, 6)
    ),
    "instance norm with running statistics": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 3, bias=False), nn.InstanceNorm1d(4, track_running_stats=True), nn.Hardswish()
        ),
        lambda rows: (torch.randn(rows, 2, 4 + rows),),
    ),
    "alpha dropout": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 3), nn.SELU(), nn.FeatureAlphaDropout(0.3), nn.AlphaDropout(0.2, inplace=True), nn.Tanh()
        ),
        lambda rows: (torch.randn(rows, 2, 4 + rows),),
    ),
    "rms norm": (lambda: nn.Sequential(nn.Linear(4, 6), nn.RMSNorm(6), nn.Softplus()), x(4)),
    "frozen batch norm": (lambda: _frozen_norm(), x(4)),
    "control flow by shape": (
        lambda: Function(
            lambda m, x: m.fc(x) * 2 if x.shape[0] > 3 else m.fc(x).relu(), fc=nn.Linear(4, 4)
        ),
        x(4),
    ),
    "several inputs and outputs": (
        lambda: Function(
            lambda m, a, b: (m.a(a) + m.b(b), {"product": m.a(a) * m.b(b), "mask": a > 0}, [b, None, 3]),
            a=nn.Linear(4, 4), b=nn.Linear(4, 4),
        ),
        lambda rows: (torch.randn(rows, 4), torch.randn(rows, 4, requires_grad=True)),
    ),
    "named tuple": (lambda: Function(lambda m, x: Pair(m.fc(x), x * 2), fc=nn.Linear(4, 4)), x(4)),
    "ordered dictionary": (
        lambda: Function(lambda m, x: collections.OrderedDict(y=m.fc(x), z=m.fc(x).sum()), fc=nn.Linear(4, 4)), x(4)
    ),
    "stopped gradients": (
        lambda: Function(lambda m, x: m.b(m.a(x).detach()) + m.a(x), a=nn.Linear(4, 4), b=nn.Linear(4, 4)), x(4)
    ),
    "unused parameters": (lambda: Function(lambda m, x: m.a(x), a=nn.Linear(4, 4), b=nn.Linear(4, 4)), x(4)),
    "frozen parameters": (lambda: _frozen(), x(4)),
    "a layer used twice": (lambda: Function(lambda m, x: m.a(m.a(x).tanh()), a=nn.Linear(4, 4)), x(4)),
    "batch norm used twice": (lambda: Function(lambda m, x: m.n(m.n(x).tanh()), n=nn.BatchNorm1d(4)), x(4)),
    "loss inside": (
        lambda: Function(lambda m, x, t: F.cross_entropy(m.fc(x), t), fc=nn.Linear(4, 3)),
        lambda rows: (torch.randn(rows, 4), torch.randint(3, (rows,))),
    ),
    "loss of a single row": (
        lambda: Function(
            lambda m, x: F.cross_entropy(m.fc(x)[0], x.new_tensor(1).long(), reduction="none"), fc=nn.Linear(4, 3)
        ),
        x(4),
    ),
    "loss with label smoothing": (
        lambda: Function(lambda m, x, t: F.cross_entropy(m.fc(x), t, label_smoothing=0.1), fc=nn.Linear(4, 3)),
        lambda rows: (torch.randn(rows, 4), torch.randint(3, (rows,))),
    ),
    "smoothed labels, weights of classes": (
        lambda: Function(lambda m, x, t: m.loss(m.fc(x), t), fc=nn.Linear(4, 3), loss=nn.CrossEntropyLoss(
            torch.tensor([1.0, 2.0, 0.5]), ignore_index=1, label_smoothing=0.2
        )),
        lambda rows: (torch.randn(rows, 4), torch.arange(rows) % 3),
    ),
    "smoothed labels of pixels, summed": (
        lambda: Function(lambda m, x, t: F.cross_entropy(m.conv(x), t, reduction="sum", label_smoothing=0.1),
                         conv=nn.Conv2d(1, 3, 1)),
        lambda rows: (torch.randn(rows, 1, 4, 4), torch.randint(3, (rows, 4, 4))),
    ),
    "bags of embeddings": (
        lambda: Function(lambda m, i, w: (m.mean(i), m.sum(i, per_sample_weights=w)),
                         mean=nn.EmbeddingBag(9, 4, padding_idx=2), sum=nn.EmbeddingBag(9, 4, mode="sum")),
        lambda rows: (torch.randint(9, (rows, 5)), torch.rand(rows, 5, requires_grad=True)),
    ),
    "bags of embeddings by offsets": (
        lambda: Function(lambda m, i, o: m.last(i, torch.cat([o, o.new_tensor([i.shape[0]])])) + m.mean(i, o),
                         mean=nn.EmbeddingBag(9, 4), last=nn.EmbeddingBag(9, 4, mode="sum", include_last_offset=True)),
        lambda rows: (torch.randint(9, (3 * rows,)), torch.tensor([0, 2, 2, 5, 7, 7, 9])[:rows]),
    ),
    "einsum of places and frequencies": (
        lambda: Function(_turned, fc=nn.Linear(4, 4)), lambda rows: (torch.randn(rows, 3, 4),)
    ),
    "einsum and indexing": (
        lambda: Function(
            lambda m, x: torch.einsum("bij,bkj->bik", m.fc(x), x)[:, [0, 2]].cumsum(1), fc=nn.Linear(4, 4)
        ),
        x(3, 4),
    ),
    "rows set by a mask": (
        lambda: Function(_masked, fc=nn.Linear(4, 4), token=nn.Linear(1, 4)),
        lambda rows: (torch.randn(rows, 3, 4), torch.arange(3 * rows).view(rows, 3) % 4 == 1),
    ),
    "arguments with names of parameters": (
        lambda: _Scaled(), lambda rows: (torch.randn(rows, 4), torch.randn(rows, 4, requires_grad=True))
    ),
    "gather and where": (
        lambda: Function(
            lambda m, x, i: torch.where(x > 0, m.fc(x), x * 0.1).gather(1, i), fc=nn.Linear(4, 4)
        ),
        lambda rows: (torch.randn(rows, 4), torch.randint(4, (rows, 2))),
    ),
    "interpolation": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Upsample(scale_factor=2, mode="bilinear")), x(1, 4, 4)
    ),
    "pixel shuffle": (lambda: nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.PixelShuffle(2)), x(1, 4, 4)),
    "double": (lambda: _mlp(4, 8, 3, act=nn.Sigmoid).double(), lambda rows: (torch.randn(rows, 4).double(),)),
    "weight norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.LeakyReLU(), nn.Linear(4, 2)),
        x(4),
    ),
    "spectral norm": (lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)), nn.Tanh()), x(4)),
    "average in a buffer": (lambda: _Average(), x(4)),
    "target network": (lambda: Function(_target, fc=nn.Linear(4, 4), target=nn.Linear(4, 4)), x(4, grad=True)),
    "mixture by softmax": (
        lambda: Function(
            lambda m, x: (m.gate(x).softmax(-1).unsqueeze(-1) * torch.stack([m.a(x), m.b(x)], 1)).sum(1),
            gate=nn.Linear(4, 2), a=nn.Linear(4, 4), b=nn.Linear(4, 4),
        ),
        x(4),
    ),
    "autoencoder": (
        lambda: Function(lambda m, x: ((m.d(m.e(x)) - x) ** 2).mean(), e=_mlp(6, 4, 2), d=_mlp(2, 4, 6)), x(6)
    ),
    "variational autoencoder": (lambda: _Variational(), x(6)),
    "mixture of experts": (lambda: _Experts(), x(4)),
    "messages along edges": (
        lambda: _Graph(), lambda rows: (torch.randn(rows, 4, requires_grad=True), torch.randint(rows, (2, 2 * rows)))
    ),
    "u-net": (lambda: _UNet(), x(1, 8, 8)),
    "inverted residual": (lambda: _Inverted(), x(4, 6, 6)),
    "layers left out": (lambda: Function(_drop_path, fc=nn.Linear(4, 4), drop=nn.Dropout(0.2, inplace=True)), x(4)),
    "separable kernel": (lambda: nn.Bilinear(3, 4, 2), lambda rows: (torch.randn(rows, 3), torch.randn(rows, 4))),
    "prelu and clamp": (
        lambda: Function(lambda m, x: m.p(m.fc(x)).clamp(-1, 1), fc=nn.Linear(4, 4), p=nn.PReLU(4)), x(4)
    ),
}  # fmt: skip


class _Variational(nn.Module):
    """An autoencoder with noise in its middle."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 8), _mlp(4, 8, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, logarithm = self.encoder(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (logarithm / 2).exp()
        divergence = -(1 + logarithm - mean**2 - logarithm.exp()).mean() / 2
        return ((self.decoder(z) - x) ** 2).mean(), divergence


class _Experts(nn.Module):
    """A mixture: each row goes through the best two of three networks."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(4, 3), nn.ModuleList(_mlp(4, 8, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        best, chosen = self.gate(x).topk(2)
        weights = best.softmax(-1)
        shares = weights.new_zeros(x.shape[0], 3).scatter(1, chosen, weights)
        return sum(shares[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))  # type: ignore[misc]


class _Graph(nn.Module):
    """Two rounds of messages along the edges of a graph, added up at the nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(8, 4), nn.GRUCell(4, 4)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges[0], edges[1]
        for _ in range(2):
            messages = self.message(torch.cat([x[source], x[target]], -1)).relu()
            x = self.update(messages.new_zeros(x.shape).index_add(0, target, messages), x)
        return x


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.middle = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU())
        self.up, self.last = nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(x)
        return self.last(torch.cat([y, self.up(self.middle(F.max_pool2d(y, 2)))], 1))


class _Inverted(nn.Module):
    """The block of MobileNetV2, with squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(4, 8, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6())
        self.depthwise = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8), nn.Hardswish()
        )
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 2, 1), nn.ReLU(), nn.Conv2d(2, 8, 1))
        self.project = nn.Sequential(nn.Conv2d(8, 4, 1, bias=False), nn.BatchNorm2d(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(self.expand(x))
        return x + self.project(y * F.hardsigmoid(self.squeeze(y)))


def _drop_path(m: nn.Module, x: Tensor) -> Tensor:
    """Rows of a layer are left out; the layer itself is never, though a number is drawn to decide it."""
    if torch.rand([]) < 0.0:
        return x
    keep = (0.8 + torch.rand(x.shape[0], 1)).floor()
    return x + m.drop(m.fc(x)) / 0.8 * keep


class _Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))

    def forward(self, weight: Tensor, scale: Tensor) -> Tensor:
        return weight * self.weight + scale * self.scale


class _Average(nn.Module):
    """What it sees is compared with a moving average of it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("average", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        if self.training:
            with torch.no_grad():
                self.average.mul_(0.9).add_(y.mean(0), alpha=0.1)
        return (y - self.average) * self.average


def _turned(m: Any, x: Tensor) -> Tensor:
    angles = torch.einsum("i,j->ij", torch.arange(x.shape[1]), m.fc.bias)
    return m.fc(x) * angles.cos()


def _masked(m: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    y = m.fc(x)
    y[mask] = m.token.bias
    z = y * 2
    z[z > 1] = 0.5
    return y.tanh() + z


def _target(m: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        wanted = m.target(x) + m.fc(x)
    return (m.fc(x) - wanted).square().mean(-1)


class _CellLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[0], 5)
        for step in range(x.shape[1]):
            h, c = self.cell(x[:, step], (h, c))
        return h


def _frozen() -> nn.Module:
    module = _mlp(4, 8, 3)
    for parameter in module[0].parameters():
        parameter.requires_grad_(False)
    return module


def _frozen_norm() -> nn.Module:
    class Frozen(nn.BatchNorm1d):
        def train(self, mode: bool = True) -> Frozen:
            return super().train(False)

    return nn.Sequential(nn.Linear(4, 4), Frozen(4), nn.Linear(4, 2)).train()

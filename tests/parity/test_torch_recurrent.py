"""Recurrent models and a model with a Loop against torch: every gradient by both exporters, and training."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import onward
from onward import optim
from onward.testing import run_on_runtime

from .architectures import Architecture, Inputs
from .exporting import export as export_by
from .exporting import feeds, randomize, run_torch
from .test_torch_parity import check_gradients
from .test_torch_training import OneFile, Split, assert_close, export, torch_step

STEPS = 5
FEATURES, HIDDEN, CLASSES = 6, 5, 4


class LstmClassifier(nn.Module):
    """Two layers over token embeddings, batch first; the last output is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, FEATURES)
        self.lstm = nn.LSTM(FEATURES, HIDDEN, num_layers=2, batch_first=True)
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y, (h, c) = self.lstm(self.embedding(x))
        return self.head(y[:, -1] + h[0] + c[1])


class BidirectionalGru(nn.Module):
    """Both the sequence and the last states are used."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(FEATURES, HIDDEN, bidirectional=True)
        self.head = nn.Linear(2 * HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y, h = self.gru(x)
        return self.head(y.mean(0) + h.transpose(0, 1).flatten(1))


class Elman(nn.Module):
    """The plain one, with a given first state."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(FEATURES, HIDDEN, nonlinearity="relu", bias=False)
        self.start = nn.Parameter(torch.zeros(1, 1, HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.rnn(x, self.start.expand(1, x.shape[1], HIDDEN).contiguous())
        return y


class LoopOverTime(nn.Module):
    """A loop in Python, as many times as there are steps; the exporter of scripted modules writes a Loop."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(FEATURES + HIDDEN, HIDDEN)
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[1], 5)  # HIDDEN; scripts see no globals
        for t in range(x.shape[0]):
            h = torch.tanh(self.inner(torch.cat([x[t], h], dim=1)))
        return self.head(h)


def scripted_loop() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it is the one way to have the exporter write a Loop
        return torch.jit.script(LoopOverTime())


class ScanOverTime(nn.Module):
    """The same as one operator of torch, which the newer exporter writes as a Scan."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(FEATURES + HIDDEN, HIDDEN)
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        def step(h: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(self.inner(torch.cat([row, h], dim=1)))
            return h, h.clone()

        h, _ = torch._higher_order_ops.scan(step, torch.zeros(x.shape[1], HIDDEN), x)
        return self.head(h)


def sequences(steps: int = 7, batch: int = 3) -> Inputs:
    return (torch.randn(steps, batch, FEATURES),)


def tokens(batch: int = 3, steps: int = 7) -> Inputs:
    return (torch.randint(0, 11, (batch, steps)),)


TIME_FIRST = {"dynamic": {"x": {0: "time", 1: "batch"}}, "other_inputs": lambda: sequences(4, 2)}
# The newer exporter's optimizer joins the parameters of a recurrent layer to those of the operator, after which torch's
# do not exist any more.
ARCHITECTURES = [
    Architecture(
        "lstm_classifier",
        lambda: (LstmClassifier(), tokens()),
        dynamic={"x": {0: "batch", 1: "time"}},
        other_inputs=lambda: tokens(2, 4),
        optimize=False,
    ),
    Architecture("lstm_static", lambda: (LstmClassifier(), tokens()), optimize=False),
    Architecture("gru_bidirectional", lambda: (BidirectionalGru(), sequences()), optimize=False, **TIME_FIRST),
    # torch exports nn.RNN with a fixed number of steps only.
    Architecture(
        "rnn",
        lambda: (Elman(), sequences()),
        dynamic={"x": {1: "batch"}},
        other_inputs=lambda: sequences(7, 2),
        optimize=False,
    ),
    Architecture("loop", lambda: (scripted_loop(), sequences()), exporters=("legacy",), **TIME_FIRST),
    Architecture("scan", lambda: (ScanOverTime(), sequences()), exporters=("dynamo",), optimize=False),
]


def cases():
    for architecture in ARCHITECTURES:
        for exporter in architecture.exporters:
            for opset in (12, 17) if exporter == "legacy" else (18,):
                yield pytest.param(architecture, exporter, opset, id=f"{architecture.name}-{exporter}-{opset}")


@pytest.mark.parametrize(("architecture", "exporter", "opset"), list(cases()))
def test_every_parameter_gradient_equals_torch(architecture, exporter, opset):
    check_gradients(architecture, exporter, opset)


@pytest.mark.parametrize(
    ("build", "inputs", "order"), [(LstmClassifier, tokens, [0, 3, 1, 2]), (BidirectionalGru, sequences, [1, 0, 2])]
)
def test_weights_that_the_exporter_joined_are_parameters(build, inputs, order):
    """The newer exporter's optimizer reorders the gates and stacks directions and biases."""
    torch.manual_seed(0)
    module, given = build(), inputs()
    randomize(module, seed=1)
    model = export_by(Architecture("joined", build), module, given, "dynamo", 18)
    output = model.graph.output[0].name
    reference = run_torch(module, given, seed=2)
    fed = {**feeds(given), f"{output}_grad": reference.cotangent}
    results = run_on_runtime(onward.gradient(model), fed)

    def expected(layer, *parts):
        suffixes = ["", "_reverse"] if build is BidirectionalGru else [""]
        name = "gru" if build is BidirectionalGru else "lstm"
        wanted = [[reference.gradients[f"{name}.{part}_l{layer}{suffix}"] for part in parts] for suffix in suffixes]
        return np.stack([np.concatenate([in_order(grad, order) for grad in grads]) for grads in wanted])

    nodes = [node for node in model.graph.node if node.op_type in ("LSTM", "GRU")]
    for layer, node in enumerate(nodes):
        for name, parts in zip(node.input[1:4], (["weight_ih"], ["weight_hh"], ["bias_ih", "bias_hh"]), strict=True):
            wanted = expected(layer, *parts)
            np.testing.assert_allclose(results[f"{name}_grad"], wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


def in_order(grad, order):
    """torch's gates in the order of ONNX."""
    gates = np.split(grad, len(order))
    return np.concatenate([gates[index] for index in order])


@pytest.mark.parametrize(
    ("build", "exporter", "operator"), [(scripted_loop, "legacy", "Loop"), (ScanOverTime, "dynamo", "Scan")]
)
def test_the_exports_contain_loops(build, exporter, operator):
    architecture = Architecture("loop", build)
    model = export_by(architecture, build(), sequences(), exporter, 18 if exporter == "dynamo" else 17)
    assert operator in {node.op_type for node in model.graph.node}


@pytest.mark.parametrize("way", [Split, OneFile])
@pytest.mark.parametrize("build", [LstmClassifier, BidirectionalGru, scripted_loop])
def test_training(build, way, tmp_path):
    """The loss and every parameter after each of a few steps."""
    torch.manual_seed(0)
    module = build()
    randomize(module, seed=1)
    inputs = [tokens(8, 6)[0] if build is LstmClassifier else sequences(6, 8)[0] for _ in range(STEPS)]
    targets = [torch.randint(0, CLASSES, (8,)) for _ in range(STEPS)]
    names = [name for name, _ in module.named_parameters()]
    training = way(export(module, inputs[0]), names, optim.adamw(0.02, eps=1e-4), tmp_path)
    optimizer = torch.optim.AdamW(module.parameters(), 0.02, eps=1e-4)
    before = [parameter.detach().clone() for parameter in module.parameters()]
    for step, (x, y) in enumerate(zip(inputs, targets, strict=True)):
        loss = training.step(x.numpy(), y.numpy())
        assert_close(loss, torch_step(module, optimizer, x, y), f"the loss of step {step}")
        for key, parameter in module.named_parameters():
            assert_close(training[key], parameter.detach().numpy(), f"{key} after step {step}")
    assert all((a - b).abs().max() > 1e-3 for a, b in zip(module.parameters(), before, strict=True))

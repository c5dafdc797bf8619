"""Training next to torch, step by step: the loss and every parameter after each update, from the same weights."""

from __future__ import annotations

import io
import json
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from torch.nn import functional

import onward
from onward import api, artifacts, optim

STEPS = 10
TOLERANCE = 2e-5  # of the largest element: ten steps of float32, in another order of summation


class Split:
    """Our training by artifacts and `onward.api`."""

    def __init__(self, model, names, optimizer, folder, extra=()):
        made = artifacts.generate_artifacts(
            model,
            requires_grad=names,
            loss=artifacts.LossType.CrossEntropyLoss,
            optimizer=optimizer,
            artifact_directory=folder,
            additional_output_names=list(extra),
            loss_input_names=["scores"],
        )
        self.state = api.CheckpointState.load_checkpoint(made.paths["checkpoint"])
        self.module = api.Module(made.paths["training_model"], self.state, made.paths["eval_model"])
        self.optimizer = api.Optimizer(made.paths["optimizer_model"], self.module)

    def step(self, *inputs):
        """The loss, or the loss and the extra outputs."""
        outputs = self.module(*inputs)
        self.optimizer.step()
        self.module.lazy_reset_grad()
        return outputs

    def __getitem__(self, name):
        return self.state.parameters[name].data


class OneFile:
    """Our training by the one-file step and a plain session."""

    def __init__(self, model, names, optimizer, folder):
        step = onward.training_step(model, "cross_entropy", optimizer, trainable=names)
        self.session = onnxruntime.InferenceSession(step.SerializeToString())
        self.links = json.loads(self.session.get_modelmeta().custom_metadata_map["onward.signature"])["links"]
        self.outputs = [output.name for output in self.session.get_outputs()]
        self.rate, self.count, self.state = optimizer.learning_rate, 0, onward.initial_state(step, model)

    def step(self, *inputs):
        self.count += 1
        names = [value.name for value in self.session.get_inputs()]
        feeds = {**dict(zip(names, inputs, strict=False)), **self.state}
        feeds |= {"learning_rate": np.float32(self.rate), "step": np.int64(self.count)}
        feeds = {name: np.asarray(value) for name, value in feeds.items()}
        outputs = dict(zip(self.outputs, self.session.run(None, feeds), strict=True))
        self.state |= {self.links[name]: value for name, value in outputs.items() if name in self.links}
        return outputs[self.outputs[0]]

    def __getitem__(self, name):
        return self.state[name]


def export(module, *inputs):
    """The module in training mode, with its parameters under their own names."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about its own exporter
        torch.onnx.export(
            module.train(),
            inputs,
            file,
            dynamo=False,
            opset_version=17,
            training=torch.onnx.TrainingMode.TRAINING,
            do_constant_folding=False,
            input_names=["x"],
            output_names=["scores"],
            dynamic_axes={"x": {0: "batch"}},
        )
    return onnx.load_from_string(file.getvalue())


def assert_close(got, expected, what, floor=0.0):
    error = np.abs(got - expected).max() / max(np.abs(expected).max(), floor)
    assert error < TOLERANCE, f"{what} differs by {error:.1e} of its largest element"


def torch_step(module, optimizer, x, y, max_norm=None):
    optimizer.zero_grad()
    loss = functional.cross_entropy(module(x), y)
    loss.backward()
    if max_norm is not None:
        nn.utils.clip_grad_norm_(module.parameters(), max_norm)
    optimizer.step()
    return loss.item()


# Where a gradient is small against its own rounding, Adam and its relatives divide noise by noise; an epsilon well
# above the rounding makes the comparison about the formula.
EPS = 1e-4
OPTIMIZERS = {
    "sgd": (optim.sgd(0.2), lambda p: torch.optim.SGD(p, 0.2), None),
    "sgd-clip": (optim.sgd(0.5, clip=0.3), lambda p: torch.optim.SGD(p, 0.5), 0.3),
    "sgd-nesterov-decay": (
        optim.sgd(0.1, momentum=0.9, nesterov=True, weight_decay=0.02),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.02),
        None,
    ),
    "adam": (optim.adam(0.02, eps=EPS), lambda p: torch.optim.Adam(p, 0.02, eps=EPS), None),
    "adamw": (
        optim.adamw(0.02, eps=EPS, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, 0.02, eps=EPS, weight_decay=0.1),
        None,
    ),
    "adamw-clip": (optim.adamw(0.02, eps=EPS, clip=0.3), lambda p: torch.optim.AdamW(p, 0.02, eps=EPS), 0.3),
    "adagrad": (optim.adagrad(0.05, eps=EPS), lambda p: torch.optim.Adagrad(p, 0.05, eps=EPS), None),
    "rmsprop": (
        optim.rmsprop(0.01, eps=EPS, momentum=0.5),
        lambda p: torch.optim.RMSprop(p, 0.01, eps=EPS, momentum=0.5),
        None,
    ),
    "adadelta": (optim.adadelta(1.0, eps=EPS), lambda p: torch.optim.Adadelta(p, 1.0, eps=EPS), None),
}


@pytest.mark.parametrize("way", [Split, OneFile])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_mlp(name, way, tmp_path):
    ours, theirs, max_norm = OPTIMIZERS[name]
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 5))
    x, y = torch.randn(STEPS, 32, 12), torch.randint(0, 5, (STEPS, 32))
    training = way(export(module, x[0]), [key for key, _ in module.named_parameters()], ours, tmp_path)
    optimizer = theirs(module.parameters())
    before = [parameter.detach().clone() for parameter in module.parameters()]
    for step in range(STEPS):
        loss = training.step(x[step].numpy(), y[step].numpy())
        assert_close(loss, torch_step(module, optimizer, x[step], y[step], max_norm), f"the loss of step {step}")
        for key, parameter in module.named_parameters():
            assert_close(training[key], parameter.detach().numpy(), f"{key} after step {step}")
    # The comparison means something only because training moved every parameter far beyond the tolerance.
    assert all((a - b).abs().max() > 1e-3 for a, b in zip(module.parameters(), before, strict=True))


class GivenDropout(nn.Dropout):
    """Dropout that keeps the elements it is told to keep, once it has been told."""

    kept = None

    def forward(self, x):
        return super().forward(x) if self.kept is None else x * self.kept / (1 - self.p)


def test_cnn_with_batch_normalization_and_dropout(tmp_path):
    """torch drops the elements that onnxruntime drew, so its gradients are those of the mask that we trained with."""
    torch.manual_seed(1)
    module = nn.Sequential(
        *(nn.Conv2d(2, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 8, 3, groups=2, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()),
        *(GivenDropout(0.4), nn.Linear(8 * 2 * 2, 5)),
    )
    dropout = module[8]
    batch = 16
    x, y = torch.randn(STEPS, batch, 2, 8, 8), torch.randint(0, 5, (STEPS, batch))
    model = export(module, x[0])
    node = next(node for node in model.graph.node if node.op_type == "Dropout")
    node.output[:] = [node.output[0], "kept"]
    model.graph.output.append(onnx.helper.make_tensor_value_info("kept", onnx.TensorProto.BOOL, ["batch", 32]))
    names = [key for key, _ in module.named_parameters()]
    training = Split(model, names, optim.adamw(0.01, eps=EPS, weight_decay=0.1), tmp_path, extra=["kept"])
    optimizer = torch.optim.AdamW(module.parameters(), 0.01, eps=EPS, weight_decay=0.1)
    variances = {index: module[index].running_var.numpy().copy() for index in (1, 5)}
    fractions = []
    for step in range(STEPS):
        loss, kept = training.step(x[step].numpy(), y[step].numpy())
        fractions.append(kept.mean())
        dropout.kept = torch.from_numpy(kept)
        assert_close(loss, torch_step(module, optimizer, x[step], y[step]), f"the loss of step {step}")
        for key, parameter in module.named_parameters():
            assert_close(training[key], parameter.detach().numpy(), f"{key} after step {step}")
        for index, elements in ((1, batch * 8 * 8), (5, batch * 2 * 2)):
            mean, variance = module[index].running_mean.numpy(), module[index].running_var.numpy()
            assert_close(training[f"{index}.running_mean"], mean, f"mean {index} after step {step}")
            # ONNX averages the variance of the batch, torch its unbiased estimate.
            first = variances[index] * 0.9 ** (step + 1)
            biased = first + (variance - first) * (elements - 1) / elements
            assert_close(training[f"{index}.running_var"], biased, f"variance {index} after step {step}")
    assert 0.5 < np.mean(fractions) < 0.7
    assert np.std(fractions) > 0  # each step drew its own mask

    # Evaluation uses those statistics and drops nothing.
    module.eval()
    dropout.kept = None
    for index in (1, 5):
        module[index].running_var.copy_(torch.from_numpy(np.array(training[f"{index}.running_var"])))
    training.module.eval()
    loss, _ = training.module(x[0].numpy(), y[0].numpy())
    assert_close(loss, functional.cross_entropy(module(x[0]), y[0]).item(), "the loss of evaluation")


class LanguageModel(nn.Module):
    """Encoder layers between an embedding and the same matrix again; no dropout."""

    def __init__(self, vocabulary=23, d=16, tokens=7):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, d)
        self.register_buffer("mask", torch.full((tokens, tokens), float("-inf")).triu(1))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(d, 2, 24, dropout=0.0, batch_first=True, activation="gelu", norm_first=first)
            for first in (True, False)
        )
        for layer in self.layers:
            layer.dropout = layer.dropout1 = layer.dropout2 = nn.Identity()
        self.scores = nn.Linear(d, vocabulary)
        self.scores.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, src_mask=self.mask)
        return self.scores(x).flatten(0, 1)


@pytest.mark.parametrize("way", [Split, OneFile])
def test_transformer_with_tied_embedding(way, tmp_path):
    torch.manual_seed(2)
    module = LanguageModel()
    x, y = torch.randint(0, 23, (STEPS, 4, 7)), torch.randint(0, 23, (STEPS, 28))
    names = [key for key, _ in module.named_parameters()]
    assert "scores.weight" not in names
    training = way(export(module, x[0]), names, optim.adamw(0.01, eps=EPS, clip=1.0), tmp_path)
    optimizer = torch.optim.AdamW(module.parameters(), 0.01, eps=EPS)
    for step in range(STEPS):
        loss = training.step(x[step].numpy(), y[step].numpy())
        assert_close(loss, torch_step(module, optimizer, x[step], y[step], 1.0), f"the loss of step {step}")
        for key, parameter in module.named_parameters():
            # Biases begin at zero and some stay there but for rounding: that of the keys, under softmax.
            assert_close(training[key], parameter.detach().numpy(), f"{key} after step {step}", floor=0.05)

"""The same numbers as peft: the same first pairs, ten steps of SGD and of AdamW."""

from __future__ import annotations

import numpy as np
import onnx
import peft
import pytest
import torch

import onward

RANK, ALPHA, STEPS = 3, 4, 10
OPTIMIZERS = {
    "sgd": (lambda p: torch.optim.SGD(p, lr=0.5), onward.optim.sgd(0.5)),
    "adamw": (
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.01),
        onward.optim.adamw(0.01, weight_decay=0.01),
    ),
}


class Network(torch.nn.Module):
    """Convolutions and linear layers; some keep their weights as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.point = torch.nn.Conv2d(8, 6, 1, bias=False)
        self.hidden = torch.nn.Linear(6 * 4 * 4, 16)
        self.score = torch.nn.Linear(16, 5, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.conv(x))
        x = torch.tanh(self.point(x))
        return self.score(torch.nn.functional.gelu(self.hidden(x.flatten(1))))


@pytest.fixture(scope="module")
def network() -> Network:
    torch.manual_seed(0)
    return Network()


@pytest.fixture(scope="module")
def exported(network: Network) -> onnx.ModelProto:
    return onward.torch.export(network, (torch.zeros(2, 3, 8, 8),))


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    return random.normal(size=(STEPS, 6, 3, 8, 8)).astype(np.float32), random.integers(0, 5, (STEPS, 6))


def as_ours(name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    """Our name and layout of a tensor of peft, whose matrices are transposed: A [r, in] and B [out, r]."""
    ours = name.removeprefix("base_model.model.").replace(".default.weight", "")
    return ours, array if array.ndim == 4 else np.ascontiguousarray(array.T)


def pairs_of(module: torch.nn.Module) -> dict[str, np.ndarray]:
    named = module.named_parameters()
    return dict(as_ours(name, p.detach().numpy().copy()) for name, p in named if "lora_" in name)


@pytest.mark.parametrize(("optimizer", "stabilised"), [("sgd", True), ("adamw", False)])
def test_ten_steps(network, exported, data, optimizer: str, stabilised: bool) -> None:
    config = peft.LoraConfig(
        r=RANK, lora_alpha=ALPHA, use_rslora=stabilised, target_modules=["conv", "point", "hidden", "score"]
    )
    torch.manual_seed(2)
    theirs = peft.get_peft_model(Network(), config)
    theirs.base_model.model.load_state_dict(
        {name.replace(".weight", ".base_layer.weight").replace(".bias", ".base_layer.bias"): value
         for name, value in network.state_dict().items()},
        strict=False,
    )  # fmt: skip
    first = pairs_of(theirs)

    adapted = onward.lora(exported, "*", rank=RANK, alpha=ALPHA, rank_stabilised=stabilised)
    assert set(adapted.parameters) == set(first)
    trainer = onward.Trainer(adapted.model, "cross_entropy", OPTIMIZERS[optimizer][1])
    trainer.restore(first)

    step = OPTIMIZERS[optimizer][0]([p for p in theirs.parameters() if p.requires_grad])
    for x, labels in zip(*data, strict=True):
        step.zero_grad()
        loss = torch.nn.functional.cross_entropy(theirs(torch.from_numpy(x)), torch.from_numpy(labels))
        loss.backward()
        step.step()
        assert trainer.train_step((x, labels)) == pytest.approx(loss.item(), rel=2e-5)
    ours = trainer.snapshot()
    for name, expected in pairs_of(theirs).items():
        assert np.abs(expected - first[name]).max() > 1e-4, name  # it has been trained
        # AdamW divides by roots of squares: what rounding makes of small gradients shows.
        np.testing.assert_allclose(ours[name], expected, rtol=1e-3, atol=2e-5, err_msg=name)

    merged = theirs.merge_and_unload()
    state = {name: value.numpy() for name, value in merged.state_dict().items()}
    for tensor in adapted.merge(trainer).graph.initializer:
        if tensor.name in state:
            found = onnx.numpy_helper.to_array(tensor)
            np.testing.assert_allclose(found, state[tensor.name], rtol=1e-3, atol=5e-5, err_msg=tensor.name)


def test_first_values_are_drawn_as_peft_draws_them(exported) -> None:
    """Uniform, within the same bounds; B zero."""
    config = peft.LoraConfig(r=64, target_modules=["conv", "hidden"])
    theirs = pairs_of(peft.get_peft_model(Network(), config))
    ours = onward.lora(exported, ["conv.weight", "hidden.weight"], rank=64).weights()
    assert set(ours) == set(theirs)
    for name, values in ours.items():
        expected = theirs[name]
        assert values.shape == expected.shape
        np.testing.assert_allclose(np.abs(values).max(), np.abs(expected).max(), rtol=0.02)
        np.testing.assert_allclose(values.std(), expected.std(), rtol=0.05)

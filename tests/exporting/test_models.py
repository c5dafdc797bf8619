"""Every module of `tests/ortmodule/models.py`, exported by both exporters and trained for some steps beside torch."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import onward
import onward.torch
from onward.errors import ExporterWarning, OnwardError
from tests.ortmodule.models import CASES

RATE = 0.05
SAMPLE = {
    ("embeddings", "dynamo"),
    ("mixture of experts", "dynamo"),
    ("u-net", "legacy"),
    ("norm-first encoder", "legacy"),
}
# Axes that are not the batch vary with the number of rows, and are fixed in the file.
OF_THREE_ROWS = {"alpha dropout", "messages along edges", "rnn"}

_DRAWS = "the module draws random numbers"
_DETACHED = "another gradient than the model"
_CHANGED = "whenever it is called in training mode"
_FIXED = "differs in|does not take a batch of another size|has fixed sizes that were to be any"
_NOT_WRITTEN = "torch cannot export"
# Name -> what an error or a warning says, by exporters; each of the others trains as in torch.
SAID: dict[str, dict[str, str]] = {
    "dynamo": {
        "rnn": _FIXED,
        "instance norm with running statistics": _CHANGED,
        "control flow by shape": _FIXED,
        "stopped gradients": _DETACHED,
        "bags of embeddings by offsets": _FIXED,
        "spectral norm": _CHANGED,
        "average in a buffer": _CHANGED,
        "target network": _DETACHED,
        "variational autoencoder": _DRAWS,
        "layers left out": _NOT_WRITTEN,
    },
    "legacy": {
        "instance norm with running statistics": _NOT_WRITTEN,
        "alpha dropout": _NOT_WRITTEN,
        "rms norm": _NOT_WRITTEN,
        "control flow by shape": "to a Python boolean",
        "convolution in one dimension": _FIXED,
        "stopped gradients": _DETACHED,
        "loss with label smoothing": _NOT_WRITTEN,
        "smoothed labels, weights of classes": _NOT_WRITTEN,
        "smoothed labels of pixels, summed": _NOT_WRITTEN,
        "bags of embeddings": _NOT_WRITTEN,
        "bags of embeddings by offsets": _FIXED,
        "rows set by a mask": _FIXED,
        "spectral norm": _NOT_WRITTEN,
        "average in a buffer": _CHANGED,
        "target network": _DETACHED,
        "variational autoencoder": _DRAWS,
        "messages along edges": _FIXED,
        "einsum of places and frequencies": "onnxruntime cannot load the model",
        "layers left out": "to a Python boolean",
        "separable kernel": _NOT_WRITTEN,
    },
}


class WithLoss(nn.Module):
    """A number that depends on all that a module returns."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any) -> Tensor:
        returned = tree_leaves(self.module(*args))
        leaves = [leaf for leaf in returned if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        return sum((leaf.square().mean() / 2 + 0.3 * leaf.mean() for leaf in leaves), torch.zeros(()))


def build(case: str) -> nn.Module:
    """Without Dropout, whose masks would be others."""
    torch.manual_seed(0)
    module = WithLoss(CASES[case][0]()).train()
    for child in module.modules():
        for name, value in vars(child).items():
            if name in ("p", "dropout") and isinstance(value, float):
                setattr(child, name, 0.0)
    return module


def arguments(case: str, rows: int) -> tuple[Any, ...]:
    given = CASES[case][1](3 if case in OF_THREE_ROWS else rows)
    return tuple(x.detach() if isinstance(x, Tensor) else x for x in given)


def cases():
    for case in CASES:
        for exporter in ("dynamo", "legacy"):
            marks = () if (case, exporter) in SAMPLE else pytest.mark.slow
            yield pytest.param(case, exporter, marks=marks, id=f"{case}-{exporter}")


@pytest.mark.parametrize(("case", "exporter"), list(cases()))
def test_training_is_that_of_torch(case: str, exporter: str) -> None:
    module = build(case)
    expected = SAID[exporter].get(case)
    if expected is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("error", ExporterWarning)
            with pytest.raises((OnwardError, ExporterWarning), match=expected):
                onward.torch.export(module, arguments(case, 3), exporter=exporter)
        return
    model = onward.torch.export(module, arguments(case, 3), exporter=exporter)
    step = onward.training_step(model, None, "sgd")
    state = onward.initial_state(step, model)
    session = onnxruntime.InferenceSession(step.SerializeToString())
    inputs = [value.name for value in session.get_inputs()]
    own = [value.name for value in model.graph.input]
    outputs = [value.name for value in session.get_outputs()]
    before = {name: value.detach().clone() for name, value in module.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], RATE)
    for number in range(1, 5):
        args = arguments(case, 3 + number % 2)
        tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
        feeds = {name: tensor.numpy() for name, tensor in zip(own, tensors, strict=True)}
        feeds |= state | {"learning_rate": np.array(RATE, np.float32), "step": np.array(number)}
        found = dict(zip(outputs, session.run(outputs, {name: feeds[name] for name in inputs}), strict=True))
        optimizer.zero_grad()
        loss = module(*args)
        loss.backward()
        optimizer.step()
        np.testing.assert_allclose(found[outputs[0]], loss.detach().numpy(), rtol=1e-4, atol=1e-5)
        state |= {name: found[f"{name}.updated"] for name in state if f"{name}.updated" in found}
    tied = {id(tensor): name for name, tensor in reversed(list(module.named_parameters(remove_duplicate=False)))}
    for name, value in module.state_dict(keep_vars=True).items():
        name = tied.get(id(value), name)
        if not torch.equal(value, before[name]) and value.is_floating_point():
            # Four steps amplify rounding, most where a norm divides by a small variance.
            largest = float(value.detach().abs().max())
            np.testing.assert_allclose(
                state[name], value.detach().numpy(), rtol=1e-3, atol=1e-4 * largest, err_msg=name
            )

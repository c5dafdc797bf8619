"""`fit` equals a loop written by hand in torch, over the same batches."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

import onward
from onward import losses, optim
from onward.optim import schedules
from tests.trainer.toys import classifier, labelled

ROWS, BATCH, EPOCHS = 50, 8, 3  # the last batch of an epoch has 2 rows


class Net(torch.nn.Module):
    """`toys.classifier`."""

    def __init__(self) -> None:
        super().__init__()
        for tensor in classifier().graph.initializer:
            array = numpy_helper.to_array(tensor)
            self.register_parameter(tensor.name, torch.nn.Parameter(torch.from_numpy(array.copy())))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ self.w1 + self.b1) @ self.w2 + self.b2


def batches(epoch: int, size: int) -> Iterator[np.ndarray]:
    """The rows of each batch of an epoch, in the order that `order` gives to fit."""
    rows = order(epoch)
    return (rows[first : first + size] for first in range(0, ROWS, size))


def order(epoch: int) -> np.ndarray:
    return np.random.default_rng(100 + epoch).permutation(ROWS)


def by_hand(
    make: Callable[[Any], torch.optim.Optimizer],
    *,
    size: int = BATCH,
    clip: float | None = None,
    rate: Callable[[int], float] | None = None,
    loss: Callable[..., torch.Tensor] = torch.nn.functional.cross_entropy,
) -> tuple[dict[str, np.ndarray], list[float]]:
    x, y = (torch.from_numpy(array) for array in labelled(ROWS))
    net, found = Net(), []
    optimizer = make(net.parameters())
    for epoch in range(EPOCHS):
        for rows in batches(epoch, size):
            if rate is not None:
                for group in optimizer.param_groups:
                    group["lr"] = rate(len(found))
            optimizer.zero_grad()
            value = loss(net(x[rows]), y[rows])
            value.backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimizer.step()
            found.append(value.item())
    return {name: p.detach().numpy() for name, p in net.named_parameters()}, found


UPDATES = EPOCHS * math.ceil(ROWS / BATCH)
WEIGHTS = [1.0, 2.0, 0.5]
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sgd with momentum": (
        {"optimizer": optim.sgd(0.1, momentum=0.9)},
        {"make": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)},
    ),
    "adamw": (
        {"optimizer": "adamw", "learning_rate": 0.01},
        {"make": functools.partial(torch.optim.AdamW, lr=0.01)},
    ),
    "a named schedule": (
        {"optimizer": "sgd", "learning_rate": 0.2, "schedule": "cosine"},
        {"make": functools.partial(torch.optim.SGD, lr=1.0), "rate": schedules.Cosine(0.2, UPDATES)},
    ),
    "a schedule with options": (
        {"optimizer": "sgd", "learning_rate": 0.2, "schedule": ("linear", {"warmup_step_count": 0.25})},
        {"make": functools.partial(torch.optim.SGD, lr=1.0), "rate": schedules.Linear(0.2, 5, UPDATES)},
    ),
    "a function of the step": (
        {"optimizer": "sgd", "schedule": lambda step: 0.1 / (1 + step)},
        {"make": functools.partial(torch.optim.SGD, lr=1.0), "rate": lambda step: 0.1 / (1 + step)},
    ),
    "clipping": (
        {"optimizer": optim.sgd(0.5, momentum=0.9), "clip": 0.1},
        {"make": functools.partial(torch.optim.SGD, lr=0.5, momentum=0.9), "clip": 0.1},
    ),
    # 7 batches of 8 and 2 rows in groups of 3: the last group of each epoch has one batch, of 2 rows.
    "accumulation": (
        {"optimizer": optim.sgd(0.1, momentum=0.9), "accumulate": 3},
        {"make": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9), "size": 3 * BATCH},
    ),
    # In groups of 4 the last group is 8, 8 and 2 rows.
    "accumulation of batches of different size": (
        {"optimizer": optim.adamw(0.01), "accumulate": 4, "clip": 0.5},
        {"make": functools.partial(torch.optim.AdamW, lr=0.01), "size": 4 * BATCH, "clip": 0.5},
    ),
    "accumulation with class weights": (
        {
            "loss": functools.partial(losses.cross_entropy, weight=WEIGHTS, ignore_index=1),
            "optimizer": optim.sgd(0.1, momentum=0.9),
            "accumulate": 4,
        },
        {
            "make": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
            "size": 4 * BATCH,
            "loss": functools.partial(torch.nn.functional.cross_entropy, weight=torch.tensor(WEIGHTS), ignore_index=1),
        },
    ),
    "accumulation of a sum": (
        {
            "loss": functools.partial(losses.cross_entropy, reduction="sum"),
            "optimizer": optim.sgd(0.01, momentum=0.9),
            "accumulate": 4,
        },
        {
            "make": functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9),
            "size": 4 * BATCH,
            "loss": functools.partial(torch.nn.functional.cross_entropy, reduction="sum"),
        },
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_fit_equals_a_loop_in_torch(case: str) -> None:
    ours, theirs = CASES[case]
    trainer = onward.Trainer(classifier(), **{"loss": "cross_entropy", **ours})
    history = trainer.fit(*labelled(ROWS), epochs=EPOCHS, batch_size=BATCH, shuffle=order)
    parameters, expected = by_hand(**theirs)
    np.testing.assert_allclose(history.losses, expected, rtol=1e-5, atol=1e-6)
    for name, array in trainer.snapshot().items():
        np.testing.assert_allclose(array, parameters[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_batches_of_doubles_count_in_double_precision() -> None:
    """Three of 8, 8 and 4 rows are one of 20, as far as float64 tells."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        net (double[N, 4] x) => (double[N, 1] y) { y = MatMul(x, w) }
    """)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((4, 1)), "w"))
    x = np.random.default_rng(0).normal(size=(20, 4))
    found = []
    for options, batch_size in (({"accumulate": 3}, 8), ({}, 20)):
        trainer = onward.Trainer(model, "mse", optim.sgd(0.1), **options)  # type: ignore[arg-type]
        trainer.fit(x, x[:, :1], batch_size=batch_size, shuffle=False, progress=False)
        found.append(trainer.snapshot()["w"])
    np.testing.assert_allclose(*found, rtol=1e-14)


def test_one_batch_accumulates_to_itself() -> None:
    """More batches to a step than there are."""
    x, y = labelled(5)
    found = []
    for options in ({"accumulate": 7}, {}):
        trainer = onward.Trainer(classifier(), "cross_entropy", "sgd", learning_rate=0.1, **options)
        trainer.fit(x, y, epochs=2, batch_size=2 if options else 5, shuffle=False)
        found.append(trainer.snapshot())
    for name in found[0]:
        np.testing.assert_allclose(found[0][name], found[1][name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "options",
    [{}, {"ignore_index": 2}, {"weight": WEIGHTS}, {"reduction": "sum"}, {"weight": WEIGHTS, "ignore_index": 0}],
    ids=str,
)
def test_evaluate_is_the_loss_of_all_rows(options: dict[str, Any]) -> None:
    """Whatever the size of a batch."""
    x, y = labelled(ROWS)
    trainer = onward.Trainer(classifier(), functools.partial(losses.cross_entropy, **options), "sgd")
    kept = {key: torch.tensor(value) if key == "weight" else value for key, value in options.items()}
    with torch.no_grad():
        expected = torch.nn.functional.cross_entropy(Net()(torch.from_numpy(x)), torch.from_numpy(y), **kept).item()
    for size in (1, 7, ROWS):  # batches of one row may have nothing that counts
        assert trainer.evaluate(x, y, batch_size=size)["loss"] == pytest.approx(expected, rel=1e-5)

"""The same training by torch, ORTModule and ORTTrainer in both forms: Adam, gradients clipped to the norm 1."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

import onward.as_onnxruntime_training  # noqa: F401  (for the names below)

# isort: split
from onnxruntime.capi import ort_trainer
from onnxruntime.training import ORTTrainer, optim
from onnxruntime.training.ortmodule import ORTModule

RATE, NORM = 0.001, 1.0


class Engine(Protocol):
    """What trains a model."""

    def step(self, data: Tensor, targets: Tensor) -> Tensor:
        """One update; returns the loss before it."""

    def evaluate(self, data: Tensor, targets: Tensor) -> Tensor:
        """The loss, Dropout off."""

    def export(self, path: Path) -> None:
        """Write the model without its loss."""


def export_module(model: nn.Module, path: Path) -> None:
    """Write a module for inference."""
    model.eval()
    sizes = {0: torch.export.Dim("bptt"), 1: torch.export.Dim("batch")}
    sample = torch.zeros(3, 2, dtype=torch.int64)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # that torchvision is not here
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about itself
        program = torch.onnx.export(model, (sample,), dynamo=True, verbose=False, dynamic_shapes={"src": sizes})
    program.save(path)


def loss_of(words: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Cross-entropy over all words of a batch."""

    def loss(output: Tensor, label: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output.view(-1, words), label.reshape(-1))

    return loss


class Torch:
    """Plain torch."""

    def __init__(self, model: nn.Module, words: int) -> None:
        self._model, self._loss = model, loss_of(words)
        self._adam = torch.optim.Adam(model.parameters(), lr=RATE)

    def step(self, data: Tensor, targets: Tensor) -> Tensor:
        self._model.train()
        self._adam.zero_grad()
        loss = self._loss(self._model(data), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(self._model.parameters(), NORM)
        self._adam.step()
        return loss.detach()

    def evaluate(self, data: Tensor, targets: Tensor) -> Tensor:
        self._model.eval()
        with torch.no_grad():
            return self._loss(self._model(data), targets)

    def export(self, path: Path) -> None:
        export_module(self._model, path)


class Module(Torch):
    """The loop of torch, with the module on onnxruntime."""

    def __init__(self, model: nn.Module, words: int) -> None:
        super().__init__(ORTModule(model), words)
        self._wrapped = model

    def export(self, path: Path) -> None:
        export_module(self._wrapped, path)


class Ort:
    """The newer ORTTrainer; batches may have any size."""

    def __init__(self, model: nn.Module, words: int) -> None:
        sizes = ["bptt", "batch"]
        description = {
            "inputs": [("src", sizes), ("label", sizes)],
            "outputs": [("loss", [], True), ("output", [*sizes, words])],
        }
        config = optim.AdamConfig(lr=RATE, max_norm_clip=NORM)
        self._trainer = ORTTrainer(model, description, config, loss_of(words))

    def step(self, data: Tensor, targets: Tensor) -> Tensor:
        loss, _ = self._trainer.train_step(data, targets)
        return loss

    def evaluate(self, data: Tensor, targets: Tensor) -> Tensor:
        loss, _ = self._trainer.eval_step(data, targets)
        return loss

    def export(self, path: Path) -> None:
        self._trainer.export_model_for_inferencing(path, ["output"])


class Legacy:
    """The first ORTTrainer: the learning rate is an input of each step."""

    def __init__(self, model: nn.Module, words: int) -> None:
        sizes = ["bptt", "batch"]
        description = ort_trainer.ModelDescription(
            [ort_trainer.IODescription("src", sizes), ort_trainer.IODescription("label", sizes)],
            [ort_trainer.IODescription("loss", []), ort_trainer.IODescription("output", [*sizes, words])],
        )
        rate = ort_trainer.IODescription("Learning_Rate", [1], torch.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that it is experimental
            self._trainer = ort_trainer.ORTTrainer(
                model, loss_of(words), description, "AdamOptimizer", None, rate, torch.device("cpu")
            )
        self._model = model

    def step(self, data: Tensor, targets: Tensor) -> Tensor:
        loss, _ = self._trainer.train_step(data, targets, torch.tensor([RATE]))
        return loss

    def evaluate(self, data: Tensor, targets: Tensor) -> Tensor:
        loss, _ = self._trainer.eval_step(data, targets)
        return loss

    def export(self, path: Path) -> None:
        self._model.load_state_dict(self._trainer.state_dict(include_optimizer_state=False), strict=False)
        export_module(self._model, path)


ENGINES = {"ort": Ort, "legacy": Legacy, "ortmodule": Module, "torch": Torch}

"""Train a real model for a few steps with the artifacts and the loop of `onnxruntime.training`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from onward import artifacts
from onward.api import CheckpointState, Module, Optimizer

STEPS = 5
LEARNING_RATE = 1e-4


def losses(
    path: Path, feeds: dict[str, np.ndarray[Any, Any]], output: str, target: np.ndarray[Any, Any]
) -> list[float]:
    """The squared error of an output to `target` before each step of training, and after the last."""
    with tempfile.TemporaryDirectory() as folder:
        made = artifacts.generate_artifacts(
            path,
            loss=artifacts.LossType.MSELoss,
            optimizer=artifacts.OptimType.AdamW,
            artifact_directory=folder,
            loss_input_names=[output],
        )
        state = CheckpointState.load_checkpoint(made.paths["checkpoint"])
        module = Module(made.paths["training_model"], state, made.paths["eval_model"])
        optimizer = Optimizer(made.paths["optimizer_model"], module)
        optimizer.set_learning_rate(LEARNING_RATE)
        given = {**feeds, "target": target}
        inputs = [given[name] for name in module.input_names()]
        found = []
        for _ in range(STEPS):
            module.train()
            found.append(_number(module(*inputs)))
            optimizer.step()
            module.lazy_reset_grad()
        module.eval()
        return [*found, _number(module(*inputs))]


def _number(results: Any) -> float:
    return float(np.reshape(results[0] if isinstance(results, (list, tuple)) else results, ()))

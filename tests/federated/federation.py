"""Federations in this process, for the tests."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import onward
from onward.federated import client_app, server_app, simulate
from tests.trainer.toys import classifier

# After onward.federated, which keeps Flower's import quiet.
from flwr.app import Context  # isort: skip
from flwr.serverapp.strategy import Result  # isort: skip

Rows = tuple[np.ndarray, np.ndarray]
QUIET = {"fraction_evaluate": 0.0, "min_available_nodes": 1}


def trainer(seed: int, model: onnx.ModelProto | None = None, **options: Any) -> onward.Trainer:
    settings = {"loss": "cross_entropy", "optimizer": "sgd", "learning_rate": 0.1, **options}
    return onward.Trainer(classifier() if model is None else model, seed=seed, **settings)


def make(**options: Any) -> Callable[[int], onward.Trainer]:
    return functools.partial(trainer, **options)


def doubles(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model in float64."""
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
    return model


def divided(rows: Rows, sizes: Sequence[int]) -> Callable[[Context], Rows]:
    """Some rows for each client."""
    ends = np.cumsum(sizes)

    def mine(context: Context) -> Rows:
        place = int(context.node_config["partition-id"])
        part = slice(ends[place] - sizes[place], ends[place])
        return rows[0][part], rows[1][part]

    return mine


def federated(
    make_trainer: Callable[[int], onward.Trainer],
    data: Callable[[Context], Any],
    clients: int,
    *,
    tested_with: Callable[[Context], Any] | None = None,
    **options: Any,
) -> tuple[onward.Trainer, Result]:
    """Train in this process; the server's trainer at the end, and what Flower noted."""
    ended: list[tuple[onward.Trainer, Result]] = []
    settings = {"clients": clients, "on_end": lambda *end: ended.append(end), **options}
    simulate(server_app(make_trainer, **settings), client_app(make_trainer, data, evaluation=tested_with), clients)
    return ended[0]


def parameters(of: onward.Trainer) -> np.ndarray:
    return np.concatenate([array.reshape(-1) for array in of.snapshot().values()])

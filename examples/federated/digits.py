"""The apps: clients with handwritten digits that they keep to themselves, and a server that has the model.

Each client has some digits more often than others, as people do. The network (see examples/models) was exported for
inference by torch; torch is not needed here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import onward
from onward.federated import client_app, server_app

MODEL = Path(__file__).parents[1] / "models" / "digits_cnn.onnx"


def make_trainer(seed: int) -> onward.Trainer:
    """The same for the server and all clients, but for what they draw."""
    return onward.Trainer(MODEL, "cross_entropy", onward.optim.sgd(0.05, momentum=0.9), metrics=["accuracy"], seed=seed)


def digits() -> list[np.ndarray]:
    """Images `[N, 1, 8, 8]` and labels `[N]`: a training and a held-out part of each."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    return train_test_split(images, labels, test_size=0.25, random_state=0, stratify=labels)


def rows(context: Any) -> tuple[np.ndarray, np.ndarray]:
    """What one client has: half of the digits of its own kinds, and its share of the rest."""
    place, clients = context.node_config["partition-id"], context.node_config["num-partitions"]
    images, _, labels, _ = digits()
    numbers = np.arange(len(labels))
    owner = np.where(numbers % 2, labels % clients, numbers // 2 % clients)
    mine = owner == place
    return images[mine], labels[mine]


def server(**options: Any) -> Any:
    """The ServerApp; it tests with digits that no client has."""
    _, images, _, labels = digits()
    return server_app(make_trainer, epochs=2, evaluation=(images, labels), **options)


client = client_app(make_trainer, rows)

"""What happened while training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


class History:
    """The numbers of each epoch, and the loss of each step."""

    def __init__(self) -> None:
        self.epochs: list[dict[str, Any]] = []
        self.losses: list[float] = []

    def add_step(self, loss: float) -> None:
        self.losses.append(loss)

    def add_epoch(self, epoch: int, logs: Mapping[str, Any]) -> None:
        self.epochs.append({"epoch": epoch, **logs})

    def __getitem__(self, name: str) -> list[Any]:
        return [row.get(name) for row in self.epochs]

    def __len__(self) -> int:
        return len(self.epochs)

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": list(self.epochs), "losses": np.array(self.losses, np.float64)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.epochs, self.losses = [dict(row) for row in state["epochs"]], [float(loss) for loss in state["losses"]]

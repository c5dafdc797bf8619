"""Checkpoints of the first ORTTrainer, as functions beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from onward.torch.orttrainer import checkpoint

if TYPE_CHECKING:
    from onward.torch.orttrainer.ort_trainer import ORTTrainer


def save_checkpoint(
    model: ORTTrainer,
    checkpoint_dir: str,
    checkpoint_prefix: str = "ORT_checkpoint",
    checkpoint_state_dict: Mapping[str, Any] | None = None,
    include_optimizer_state: bool = True,
) -> None:
    """Write the state of a trainer, and what the user adds, to ``<checkpoint_prefix>.ort.pt``."""
    state = model.state_dict(include_optimizer_state)
    checkpoint.write_flat(state, checkpoint_dir, checkpoint_prefix, checkpoint_state_dict)


def load_checkpoint(
    model: ORTTrainer, checkpoint_dir: str, checkpoint_prefix: str = "ORT_checkpoint", strict: bool = False
) -> dict[str, Any]:
    """Continue from such a file, or from those of several processes; returns what the user added."""
    state, rest = checkpoint.read_flat(checkpoint_dir, checkpoint_prefix)
    model.load_state_dict(state, strict)
    return rest

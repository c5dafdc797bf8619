"""`FP16_Optimizer`: the original made optimizers of Apex, DeepSpeed and Megatron faster on CUDA."""

from __future__ import annotations

from typing import Any

from onward.errors import OnwardWarning, warn


def FP16_Optimizer(optimizer: Any, **kwargs: Any) -> Any:  # noqa: N802  the original's name
    """The optimizer as it is: what the original replaced in it are kernels for CUDA, which compute the same."""
    warn(
        f"FP16_Optimizer leaves {type(optimizer).__name__} as it is: onward trains on the CPU, where there is nothing "
        "to replace. Use the optimizer itself.",
        OnwardWarning,
    )
    return optimizer

"""Subscribers: what they do at each layer of a module, forward and backward; statistics in files, for instance."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from onward.errors import OnwardError
from onward.torch.utils.hooks._statistics_subscriber import StatisticsSubscriber, _InspectActivation
from onward.torch.utils.hooks._subscriber_base import SubscriberBase
from onward.torch.utils.hooks._subscriber_manager import (
    GlobalSubscriberManager,
    SubscriberManager,
    no_increase_global_step,
)

__all__ = [
    "GlobalSubscriberManager",
    "StatisticsSubscriber",
    "SubscriberBase",
    "SubscriberManager",
    "ZeROOffloadSubscriber",
    "configure_ort_compatible_zero_stage3",
    "inspect_activation",
    "no_increase_global_step",
]


def inspect_activation(activation_name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Let the subscribers of `GlobalSubscriberManager` see a tensor, and later its gradient, under this name."""
    found: torch.Tensor = _InspectActivation.apply(  # type: ignore[no-untyped-call]
        activation_name, None, GlobalSubscriberManager.get_run_context(), tensor
    )
    return found


class ZeROOffloadSubscriber(SubscriberBase):
    """Collects parameters that DeepSpeed has spread over several GPUs; there is none of them here."""

    def __init__(self, *_: Any, **__: Any) -> None:
        _refuse_zero()


def configure_ort_compatible_zero_stage3(*_: Any, **__: Any) -> None:
    """Raise an error: DeepSpeed's third stage runs on GPUs."""
    _refuse_zero()


def _refuse_zero() -> NoReturn:
    raise OnwardError(
        "the third stage of DeepSpeed's ZeRO spreads parameters over GPUs, and ORTModule runs on the CPU here; wrap "
        "the ORTModule in torch.nn.parallel.DistributedDataParallel instead"
    )

"""Devices by name and the states of random numbers, as the original's `_utils` has them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def get_device_index(device: str | int | torch.device) -> int:
    """The number of a device; 0 if it has none."""
    return device if isinstance(device, int) else torch.device(device).index or 0


def get_device_str(device: str | int | torch.device) -> str:
    """The name of a device with its number, but for the CPU."""
    found = torch.device(device)
    return found.type if found.type == "cpu" else f"{found.type}:{get_device_index(found)}"


def get_random_states() -> tuple[Any, Any, Any, Any]:
    """The states of random numbers of Python, numpy, torch and CUDA."""
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return random.getstate(), np.random.get_state(legacy=True), torch.get_rng_state(), cuda


def set_random_states(states: tuple[Any, Any, Any, Any]) -> None:
    """Go back to states of `get_random_states`."""
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    if states[3] is not None:
        torch.cuda.set_rng_state(states[3])

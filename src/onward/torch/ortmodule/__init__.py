"""Modules of torch on stock onnxruntime: the names of `onnxruntime.training.ortmodule`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar

import torch

from onward.errors import warn as _warn
from onward.torch.ortmodule import _fallback, _utils, torch_cpp_extensions
from onward.torch.ortmodule._fallback import (
    ORTMODULE_FALLBACK_POLICY as ORTMODULE_FALLBACK_POLICY,
)
from onward.torch.ortmodule._fallback import (
    FallbackWarning,
    ORTModuleDeviceException,
    ORTModuleFallbackException,
    ORTModuleInitException,
    ORTModuleIOError,
    ORTModuleONNXModelException,
    ORTModuleTorchModelException,
)
from onward.torch.ortmodule.options import DEFAULT_OPSET, DebugOptions, LogLevel
from onward.torch.ortmodule.ortmodule import ORTModule

__all__ = [
    "DebugOptions",
    "FallbackWarning",
    "LogLevel",
    "ORTModule",
    "ORTModuleDeviceException",
    "ORTModuleFallbackException",
    "ORTModuleIOError",
    "ORTModuleInitException",
    "ORTModuleONNXModelException",
    "ORTModuleTorchModelException",
    "_fallback",
    "_utils",
]

# Programs assign to it: the opset that modules made from then on are exported to.
ONNX_OPSET_VERSION: int = DEFAULT_OPSET
MINIMUM_RUNTIME_PYTORCH_VERSION_STR = "2.6.0"
ORTMODULE_TORCH_CPP_DIR = str(Path(torch_cpp_extensions.__file__).parent)
TORCH_CPP_DIR = ORTMODULE_TORCH_CPP_DIR  # as the first releases called it
ORTMODULE_FALLBACK_RETRY = False  # unless the environment variable of this name says otherwise
ORTMODULE_IS_DETERMINISTIC = torch.are_deterministic_algorithms_enabled()

_Constant = TypeVar("_Constant")


def _defined_from_envvar(name: str, default_value: _Constant, warn: bool = True) -> _Constant:
    """What an environment variable says, of the type of `default_value`, or that."""
    text = os.environ.get(name)
    if text is None:
        return default_value
    kind: Any = type(default_value)
    try:
        found: _Constant = kind(text)
    except (TypeError, ValueError) as error:
        if warn:
            _warn(f"Unable to overwrite constant {name!r} due to {error!r}.")
        return default_value
    return found


def _are_deterministic_algorithms_enabled() -> bool:
    """Whether torch is told to be deterministic. Graphs on the CPU are, always."""
    return torch.are_deterministic_algorithms_enabled()

"""Modules of torch on stock onnxruntime: the names of `onnxruntime.training.ortmodule`."""

from __future__ import annotations

from onward.torch.ortmodule import _fallback, _utils
from onward.torch.ortmodule._fallback import (
    ORTModuleDeviceException,
    ORTModuleFallbackException,
    ORTModuleInitException,
    ORTModuleIOError,
    ORTModuleONNXModelException,
    ORTModuleTorchModelException,
)
from onward.torch.ortmodule.options import DebugOptions, LogLevel
from onward.torch.ortmodule.ortmodule import FallbackWarning, ORTModule

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

"""What the user wants to see of an ORTModule: log messages and files of its graphs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import Any

import torch.onnx

from onward.errors import OnwardError
from onward.session.configuration import PropagateCastOpsStrategy

# What torch's exporter writes if it is not told otherwise.
DEFAULT_OPSET: int = getattr(getattr(torch.onnx, "_constants", None), "ONNX_DEFAULT_OPSET", 18)


class LogLevel(IntEnum):
    """How much is said: messages of this level and above."""

    VERBOSE = 0
    DEVINFO = 1
    INFO = 2
    WARNING = 3
    ERROR = 4
    FATAL = 5


class _SkipCheck(IntFlag):
    """What the original leaves out after the first call. Here nothing is left out; the names are taken."""

    SKIP_CHECK_DISABLED = 1
    SKIP_CHECK_DEVICE = 2
    SKIP_CHECK_BUILD_GRADIENT = 4
    SKIP_CHECK_EXECUTION_AGENT = 8


def _skip_check() -> _SkipCheck:
    """What ORTMODULE_SKIPCHECK_POLICY names, joined by ``|``."""
    found = _SkipCheck(0)
    for name in os.environ.get("ORTMODULE_SKIPCHECK_POLICY", "").split("|"):
        if name.strip() and name.strip() not in _SkipCheck.__members__:
            raise OnwardError(f"ORTMODULE_SKIPCHECK_POLICY is {name!r}; it takes {', '.join(_SkipCheck.__members__)}")
        found |= _SkipCheck[name.strip()] if name.strip() else _SkipCheck(0)
    return found or _SkipCheck.SKIP_CHECK_DISABLED


@dataclass
class RuntimeOptions:
    """Options of the original.

    `onnx_opset_version` is the opset that torch's exporter writes, and `export_extra_kwargs` are more arguments for it.
    The others are taken and have no effect: they choose between optimisations of the original, or leave out checks.
    """

    onnx_opset_version: int = field(default_factory=lambda: opset_of_environment())
    export_extra_kwargs: dict[str, Any] = field(default_factory=dict)
    skip_check: _SkipCheck = field(default_factory=_skip_check)
    propagate_cast_ops_strategy: PropagateCastOpsStrategy = PropagateCastOpsStrategy.FLOOD_FILL
    propagate_cast_ops_level: int = 1
    propagate_cast_ops_allow: list[str] = field(default_factory=list)
    use_external_gpu_allocator: bool = False
    enable_custom_autograd_function: bool = True
    use_static_shape: bool = False
    run_symbolic_shape_infer: bool = True
    enable_grad_acc_optimization: bool = False
    use_memory_efficient_gradient: bool = False
    allow_layer_norm_mod_precision: bool = False

    @property
    def opset(self) -> int | None:
        """The opset that was asked for; None is that of torch."""
        return None if self.onnx_opset_version == DEFAULT_OPSET else self.onnx_opset_version


def opset_of_environment() -> int:
    from onward.torch import ortmodule  # where programs change the default of all modules

    name = "ORTMODULE_ONNX_OPSET_VERSION"
    text = os.environ.get(name, "").strip()
    if not text:
        return ortmodule.ONNX_OPSET_VERSION
    if not text.isdigit():
        raise OnwardError(f"{name} is {text!r}; it takes the number of an opset, {DEFAULT_OPSET} for instance")
    return int(text)


class DebugOptions:
    """What to log, and whether to write the graphs to files.

    Args:
        log_level: what is logged; the environment variable ORTMODULE_LOG_LEVEL wins.
        save_onnx: write each graph to ``<save_path>/<onnx_prefix>_<kind>_<training or inference>.onnx``.
        onnx_prefix: how the names of these files begin; needed if they are written.
        save_path: their folder; the environment variable ORTMODULE_SAVE_ONNX_PATH wins. By default the current one.
        config: taken as in the original, without an effect: there is nothing to configure.
    """

    def __init__(
        self,
        log_level: LogLevel = LogLevel.WARNING,
        save_onnx: bool = False,
        onnx_prefix: str = "",
        save_path: str = "",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self._save_onnx, self._config = bool(save_onnx), config
        self._onnx_prefix, self._log_level = onnx_prefix, _level(log_level)
        self._save_path = os.environ.get("ORTMODULE_SAVE_ONNX_PATH") or save_path or os.getcwd()
        if self._save_onnx:
            _require_writable(onnx_prefix, self._save_path)

    @property
    def log_level(self) -> LogLevel:
        """What is logged."""
        return self._log_level

    @property
    def save_onnx(self) -> bool:
        """Whether graphs are written to files."""
        return self._save_onnx

    @property
    def onnx_prefix(self) -> str:
        """How the names of these files begin."""
        return self._onnx_prefix

    @property
    def save_path(self) -> str:
        """Where they are written."""
        return self._save_path

    # In the original these are objects of their own, and programs look into them.
    @property
    def logging(self) -> DebugOptions:
        """These options; `.logging.log_level` is what the original calls it."""
        return self

    @property
    def save_onnx_models(self) -> _SavedModels:
        """What is written, as the original calls it: `.save`, `.name_prefix`, `.path`."""
        return _SavedModels(self)

    def file(self, kind: str, mode: str) -> Path:
        """Where a graph is written."""
        return Path(self._save_path) / f"{self._onnx_prefix}_{kind}_{mode}.onnx"


class _SavedModels:
    def __init__(self, options: DebugOptions) -> None:
        self.save, self.name_prefix, self.path = options.save_onnx, options.onnx_prefix, options.save_path


def _level(given: LogLevel) -> LogLevel:
    if not isinstance(given, LogLevel):
        raise TypeError(f"Expected log_level of type LogLevel, got {type(given)}.")
    name = os.environ.get("ORTMODULE_LOG_LEVEL", "").strip()
    if not name:
        return given
    if name not in LogLevel.__members__:
        raise OnwardError(f"ORTMODULE_LOG_LEVEL is {name!r}; it takes {', '.join(LogLevel.__members__)}")
    return LogLevel[name]


def _require_writable(prefix: str, folder: str) -> None:
    if not isinstance(prefix, str):
        raise TypeError(f"Expected name prefix of type str, got {type(prefix)}.")
    if not prefix:
        raise ValueError("onnx_prefix must be provided when save_onnx is set. The names of the files begin with it.")
    if not os.access(folder, os.W_OK | os.X_OK) or not os.path.isdir(folder):
        raise OSError(f"Directory {folder} is not writable. save_onnx=True writes there.")

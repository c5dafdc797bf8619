"""Options of an ORTModule from a JSON file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onward.errors import OnwardError
from onward.session.configuration import PropagateCastOpsStrategy
from onward.torch.ortmodule._fallback import _FallbackPolicy
from onward.torch.ortmodule.options import DebugOptions, LogLevel, RuntimeOptions, _SkipCheck
from onward.torch.ortmodule.ortmodule import ORTModule

__all__ = ["load_from_json"]

JSON_PATH_ENVIRONMENT_KEY = "ORTMODULE_JSON_CONFIG_PATH"
# What has no meaning on stock onnxruntime is checked and kept, and has no effect.
_BOOLEANS = {
    "AllowLayerNormModPrecision": "allow_layer_norm_mod_precision",
    "EnableCustomAutogradFunction": "enable_custom_autograd_function",
    "EnableGradAccOptimization": "enable_grad_acc_optimization",
    "RunSymbolicShapeInference": "run_symbolic_shape_infer",
    "UseExternalGPUAllocator": "use_external_gpu_allocator",
    "UseMemoryEfficientGradient": "use_memory_efficient_gradient",
    "UseStaticShape": "use_static_shape",
}


def load_from_json(ortmodule: ORTModule, path: str | os.PathLike[str] | None = None) -> None:
    """Set the options of an ORTModule.

    ``DebugOptions`` (LogLevel, SaveONNX, ONNXPrefix, SaveONNXPath), ``FallbackPolicy`` (a list of names) and
    ``OnnxOpsetVersion`` have the meaning that they have elsewhere; ``SkipCheck``, ``PropagateCastOps`` and the switches
    of the original's optimisations are checked and have no effect.

    Args:
        ortmodule: the module.
        path: the file; the environment variable ORTMODULE_JSON_CONFIG_PATH wins.
    """
    chosen = os.environ.get(JSON_PATH_ENVIRONMENT_KEY) or path
    if chosen is None:
        raise ValueError(f"give the path of a JSON file, here or in {JSON_PATH_ENVIRONMENT_KEY}")
    try:
        content = json.loads(Path(chosen).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OnwardError(f"{os.fspath(chosen)!r} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise OnwardError(f"{os.fspath(chosen)!r} holds {type(content).__name__}, not an object with options")
    unknown = sorted(content.keys() - _LOADERS.keys())
    if unknown:
        raise OnwardError(f"{os.fspath(chosen)!r} has {unknown[0]!r}; options are {', '.join(sorted(_LOADERS))}")
    for key, value in content.items():
        _LOADERS[key](ortmodule, key, value)


def _load_debug_options(ortmodule: ORTModule, key: str, value: Any) -> None:
    names = {"LogLevel": "log_level", "SaveONNX": "save_onnx", "ONNXPrefix": "onnx_prefix", "SaveONNXPath": "save_path"}
    if not isinstance(value, dict) or value.keys() - names.keys():
        raise OnwardError(f"{key} takes {', '.join(names)}, not {value!r}")
    options = {names[name]: given for name, given in value.items()}
    if "log_level" in options:
        options["log_level"] = _member(LogLevel, options["log_level"], f"{key}.LogLevel")
    ortmodule._torch_module._execution_manager(True)._debug_options = DebugOptions(**options)


def _load_fallback_policy(ortmodule: ORTModule, key: str, value: Any) -> None:
    policy = _FallbackPolicy(0)
    for name in _strings(key, value):
        policy |= _member(_FallbackPolicy, name, key)
    if policy:
        ortmodule._torch_module._execution_manager(True)._fallback_manager.policy = policy


def _load_skip_check(ortmodule: ORTModule, key: str, value: Any) -> None:
    found = _SkipCheck(0)
    for name in _strings(key, value):
        found |= _member(_SkipCheck, name, key)
    _options(ortmodule).skip_check = found


def _load_propagate_cast_ops(ortmodule: ORTModule, key: str, value: Any) -> None:
    known = {"Strategy", "Level", "Allow"}
    if not isinstance(value, dict) or value.keys() - known:
        raise OnwardError(f"{key} takes {', '.join(sorted(known))}, not {value!r}")
    options = _options(ortmodule)
    if "Strategy" in value:
        options.propagate_cast_ops_strategy = _member(PropagateCastOpsStrategy, value["Strategy"], f"{key}.Strategy")
    if "Level" in value:
        options.propagate_cast_ops_level = _checked(f"{key}.Level", value["Level"], int)
    if "Allow" in value:
        options.propagate_cast_ops_allow = _strings(f"{key}.Allow", value["Allow"])


def _load(name: str, kind: type) -> Callable[[ORTModule, str, Any], None]:
    def load(ortmodule: ORTModule, key: str, value: Any) -> None:
        setattr(_options(ortmodule), name, _checked(key, value, kind))

    return load


def _options(ortmodule: ORTModule) -> RuntimeOptions:
    found: RuntimeOptions = ortmodule._torch_module._execution_manager(True)._runtime_options
    return found


def _checked(key: str, value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise OnwardError(f"{key} takes {kind.__name__}, not {value!r}")
    return value


def _strings(key: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise OnwardError(f"{key} takes a list of names, not {value!r}")
    return value


def _member(kind: Any, name: Any, key: str) -> Any:
    if name not in kind.__members__:
        raise OnwardError(f"{key} takes {', '.join(kind.__members__)}, not {name!r}")
    return kind[name]


_LOADERS: dict[str, Callable[[ORTModule, str, Any], None]] = {
    "DebugOptions": _load_debug_options,
    "FallbackPolicy": _load_fallback_policy,
    "SkipCheck": _load_skip_check,
    "PropagateCastOps": _load_propagate_cast_ops,
    "OnnxOpsetVersion": _load("onnx_opset_version", int),
    **{key: _load(name, bool) for key, name in _BOOLEANS.items()},
}

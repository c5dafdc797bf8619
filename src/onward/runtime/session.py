"""Open onnxruntime sessions for training: from bytes or a path, on the device the user asks for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnxruntime

from onward.errors import OnwardError

_PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "dml": "DmlExecutionProvider",
    "rocm": "ROCMExecutionProvider",
    "migraphx": "MIGraphXExecutionProvider",
}


def providers_for(device: str, providers: Sequence[Any] | None = None) -> list[Any]:
    """The execution providers of a device string such as "cpu", "cuda" or "cuda:1"."""
    if providers is None:
        kind, _, index = device.partition(":")
        if kind not in _PROVIDERS or (index and not index.isdigit()):
            raise OnwardError(f"Unsupported device type: {device!r}; use one of {', '.join(_PROVIDERS)}, or 'cuda:1'")
        name = _PROVIDERS[kind]
        providers = [(name, {"device_id": index}) if index else name]
    available = onnxruntime.get_available_providers()
    for provider in providers:
        name = provider if isinstance(provider, str) else provider[0]
        if name not in available:
            raise OnwardError(
                f"the execution provider {name} is not in the installed onnxruntime, which has {', '.join(available)}. "
                "Install the onnxruntime package for that device, or use device='cpu'."
            )
    return list(providers)


def open_session(
    model: bytes | str | os.PathLike[str],
    *,
    folder: str | os.PathLike[str] | None = None,
    options: onnxruntime.SessionOptions | None = None,
    providers: Sequence[Any] = ("CPUExecutionProvider",),
) -> onnxruntime.InferenceSession:
    """A session of a model in memory or in a file; `folder` is where a model in memory finds its external data."""
    if options is None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
    if isinstance(model, bytes):
        if folder is not None:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
        return onnxruntime.InferenceSession(model, options, providers=list(providers))
    path = Path(model)
    if not path.is_file():
        raise OnwardError(f"there is no model file at {str(path)!r}")
    return onnxruntime.InferenceSession(str(path), options, providers=list(providers))

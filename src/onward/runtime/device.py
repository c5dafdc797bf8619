"""Where tensors live, and which execution providers compute there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnxruntime

from onward.errors import OnwardError

# What users call a device -> the provider that computes on it.
_PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "rocm": "ROCMExecutionProvider",
    "migraphx": "MIGraphXExecutionProvider",
}
# Providers with memory of their own; all others (XNNPACK, CoreML, OpenVINO ...) take and give tensors in main memory.
_MEMORY = {provider: kind for kind, provider in _PROVIDERS.items() if kind != "cpu"}
_MEMORY["TensorrtExecutionProvider"] = _MEMORY["NvTensorRTRTXExecutionProvider"] = "cuda"


@dataclass(frozen=True)
class Device:
    """Memory that holds tensors; `kind` "cpu" is main memory."""

    kind: str = "cpu"
    index: int = 0

    @property
    def is_host(self) -> bool:
        return self.kind == "cpu"

    @property
    def ort_name(self) -> str:
        """What onnxruntime calls it when it allocates tensors."""
        return self.kind if self.kind in ("cpu", "cuda") else "cuda"

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}" if self.index else self.kind


HOST = Device()


def choose(device: str = "cpu", providers: Sequence[Any] | None = None) -> tuple[Device, list[Any]]:
    """The device that a string such as "cpu", "cuda" or "cuda:1" names, and its providers.

    `providers`, in the form that onnxruntime.InferenceSession takes, win over `device`.
    """
    if providers is None:
        kind, _, index = str(device).partition(":")
        if kind not in _PROVIDERS or (index and not index.isdigit()):
            raise OnwardError(f"Unsupported device type: {device!r}; use one of {', '.join(_PROVIDERS)}, or 'cuda:1'")
        name = _PROVIDERS[kind]
        providers = [(name, {"device_id": index}) if index else name]
    if not providers:
        raise OnwardError("`providers` is empty; name at least one execution provider, or leave it out")
    _check_available(providers)
    first, options = _named(providers[0])
    if first not in _MEMORY:
        return HOST, list(providers)
    return Device(_MEMORY[first], int(options.get("device_id", 0))), list(providers)


def _check_available(providers: Sequence[Any]) -> None:
    available = onnxruntime.get_available_providers()
    for provider in providers:
        name, _ = _named(provider)
        if name not in available:
            raise OnwardError(
                f"the execution provider {name} is not in the installed onnxruntime, which has {', '.join(available)}. "
                "Install the onnxruntime package for that device, or use device='cpu'."
            )


def _named(provider: Any) -> tuple[str, dict[str, Any]]:
    return (provider, {}) if isinstance(provider, str) else (provider[0], dict(provider[1]))

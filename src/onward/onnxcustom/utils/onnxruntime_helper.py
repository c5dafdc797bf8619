"""Devices, as text and as onnxruntime has them, and their execution providers."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from onward.onnxcustom.training.excs import WrongTypeError, WrongValueError
from onward.runtime.values import OrtDevice, value_from_array

_PROVIDERS = {"CPUExecutionProvider": "cpu", "CUDAExecutionProvider": "cuda"}
_TYPES = {"cpu": OrtDevice.cpu(), "cuda": OrtDevice.cuda()}


def provider_to_device(provider_name: str) -> str:
    """The device of an execution provider: "cpu" or "cuda"."""
    if provider_name not in _PROVIDERS:
        raise WrongValueError(f"unexpected provider {provider_name!r}; known are {', '.join(_PROVIDERS)}")
    return _PROVIDERS[provider_name]


def get_ort_device_type(device: Any) -> int:
    """onnxruntime's number of a kind of device, which is "cpu", "cuda" or an OrtDevice."""
    if isinstance(device, str):
        if device not in _TYPES:
            raise WrongValueError(f"unsupported device type {device!r}; use one of {', '.join(_TYPES)}")
        return _TYPES[device]
    if not hasattr(device, "device_type"):
        raise WrongTypeError(f"a device is a string or an OrtDevice, not {type(device).__name__}")
    return _TYPES[_kind(device)]


def get_ort_device(device: Any) -> Any:
    """The OrtDevice of "cpu", "cuda", "cuda:1", "gpu" or "gpu:1"; an OrtDevice as it is."""
    if isinstance(device, OrtDevice):
        return device
    if not isinstance(device, str):
        raise WrongTypeError(f"a device is a string or an OrtDevice, not {type(device).__name__} ({device!r})")
    kind, colon, index = device.partition(":")
    kind = "cuda" if kind == "gpu" else kind
    if kind not in _TYPES or (colon and not index.isdecimal()) or (kind == "cpu" and colon):
        raise WrongValueError(f"{device!r} is no device; use 'cpu', 'cuda', 'cuda:1', 'gpu' or 'gpu:1'")
    return OrtDevice(_TYPES[kind], OrtDevice.default_memory(), int(index or 0))


def ort_device_to_string(device: Any) -> str:
    """The text that `get_ort_device` makes this device of: "cpu", "cuda" or "cuda:1"."""
    if not isinstance(device, OrtDevice):
        raise WrongTypeError(f"device must be an OrtDevice, not {type(device).__name__}")
    kind, index = _kind(device), device.device_id()
    # Interned: scikit-learn's clone compares parameters by identity.
    return sys.intern(f"{kind}:{index}") if index else kind


def numpy_to_ort_value(arr: np.ndarray, device: Any = None) -> Any:
    """A value of onnxruntime's extension module with a copy of `arr`, in main memory by default."""
    return value_from_array(arr, get_ort_device("cpu") if device is None else device)


def device_to_providers(device: Any) -> list[Any]:
    """The execution providers that compute on a device."""
    device = get_ort_device(device)
    if _kind(device) == "cpu":
        return ["CPUExecutionProvider"]
    index = device.device_id()
    return [("CUDAExecutionProvider", {"device_id": index})] if index else ["CUDAExecutionProvider"]


def get_ort_device_from_session(sess: Any) -> Any:
    """The device of a session: that of its first execution provider."""
    provider = sess.get_providers()[0]
    kind = provider_to_device(provider)
    index = sess.get_provider_options().get(provider, {}).get("device_id", 0)
    return get_ort_device(f"{kind}:{index}" if int(index) else kind)


def _kind(device: Any) -> str:
    kind = device.device_type()
    for name, number in _TYPES.items():
        if kind in (name, number):
            return name
    raise WrongValueError(f"unsupported device type {kind!r}; only cpu and cuda are known")

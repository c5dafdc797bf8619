"""Views into memory of a device, as onnxruntime tensors.

onnxruntime can allocate memory on a device but not cut it into pieces. DLPack, the exchange format between frameworks,
can describe a piece: address, shape, type and device; onnxruntime then uses the memory as it is.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as ort_native

from onward.errors import OnwardError
from onward.runtime.device import Device

# Numbers of dlpack.h.
_DEVICES = {"cpu": 1, "cuda": 2, "rocm": 10, "migraphx": 10}
_KINDS = {"i": 0, "u": 1, "f": 2, "b": 1}  # onnxruntime takes bool as bytes and is told so apart
_BFLOAT = 4


class _DLDevice(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("index", ctypes.c_int32))


class _DLDataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("rank", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


class _DLManagedTensor(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_DLManagedTensor))
_DLManagedTensor._fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)

# What a view needs to stay alive as long as onnxruntime uses it, by the address of its description.
_alive: dict[int, tuple[Any, ...]] = {}


def _forget(tensor: Any) -> None:
    _alive.pop(ctypes.addressof(tensor.contents), None)


_release = _Deleter(_forget)


def view(
    owner: onnxruntime.OrtValue, offset: int, shape: tuple[int, ...], dtype: np.dtype, device: Device
) -> onnxruntime.OrtValue:
    """The tensor of this shape that begins at element `offset` of `owner`, which it keeps alive; nothing is copied."""
    if not hasattr(ort_native.OrtValue, "from_dlpack"):
        raise OnwardError(f"tensors on {device} need an onnxruntime with DLPack, which {onnxruntime.__version__} lacks")
    sizes = (ctypes.c_int64 * max(1, len(shape)))(*shape)
    managed = _DLManagedTensor()
    tensor = managed.tensor
    tensor.data = owner.data_ptr() + offset * dtype.itemsize
    tensor.device = _DLDevice(_DEVICES[device.kind], device.index)
    tensor.rank = len(shape)
    tensor.dtype = _DLDataType(_BFLOAT if dtype.name == "bfloat16" else _KINDS[dtype.kind], dtype.itemsize * 8, 1)
    tensor.shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = _release
    address = ctypes.addressof(managed)
    _alive[address] = (managed, sizes, owner)
    capsule = _new_capsule(address, b"dltensor", None)
    return onnxruntime.OrtValue(ort_native.OrtValue.from_dlpack(capsule, dtype == np.bool_))

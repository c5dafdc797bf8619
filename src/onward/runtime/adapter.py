"""onnxruntime's files of adapters, ``.onnx_adapter``: tensors that override default values of a model's inputs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime

from onward.errors import OnwardError
from onward.runtime.files import replacing_together

_MARK = b"TORT"  # at the fifth byte: which kind of flatbuffer it is
_BFLOAT16 = 16  # what onnx calls the type, which numpy has not


def is_adapter(path: str | os.PathLike[str]) -> bool:
    """Whether a file is one."""
    with open(path, "rb") as file:
        return file.read(8)[4:] == _MARK


def write_adapter(path: str | os.PathLike[str], tensors: Mapping[str, np.ndarray], version: int = 1) -> None:
    """Write tensors under the names of the inputs that they override."""
    target = Path(path)
    if target.is_dir():
        raise OnwardError(f"{str(target)!r} cannot be written: it is a directory")
    if not target.parent.is_dir():
        raise OnwardError(f"{str(target)!r} cannot be written: there is no directory {str(target.parent)!r}")
    content = onnxruntime.AdapterFormat()
    content.set_adapter_version(version)
    content.set_model_version(version)
    arrays = {name: np.ascontiguousarray(array) for name, array in tensors.items()}  # kept alive until written
    content.set_parameters({name: _value(array) for name, array in arrays.items()})
    with replacing_together(target.parent) as drafts:
        # onnxruntime wants the path as a text without links.
        content.export_adapter(os.path.realpath(drafts / target.name))


def read_adapter(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The tensors of an adapter, by name."""
    try:
        content = onnxruntime.AdapterFormat.read_adapter(os.path.realpath(path))
        return {name: np.array(value.numpy()) for name, value in content.get_parameters().items()}
    except Exception as error:
        raise OnwardError(f"{os.fspath(path)!r} is no adapter that onnxruntime can read: {error}") from error


def _value(array: np.ndarray) -> onnxruntime.OrtValue:
    if array.dtype.name == "bfloat16":
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), _BFLOAT16)
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)

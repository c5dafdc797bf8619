"""What programs in other languages are told of models and files, as plain JSON that needs no library to be read."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir


def describe_value(value: onnx.ValueInfoProto) -> dict[str, Any]:
    """Name, type and shape of an input or output.

    A size that is known only when data comes is its name, or None where it has no name; so is an unknown shape.
    """
    tensor = value.type.tensor_type
    shape = _shape(tensor) if tensor.HasField("shape") else None
    return {"name": value.name, "type": type_name(tensor.elem_type), "shape": shape}


def describe_file(path: Path, **more: Any) -> dict[str, Any]:
    """A file, with its hash, so that a program can tell whether it has the right one."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return {"file": path.name, "bytes": path.stat().st_size, "sha256": digest.hexdigest(), **more}


def versions() -> dict[str, str]:
    """What files were made with."""
    return {package: metadata.version(package) for package in ("onward", "onnx", "onnxruntime")}


def opset_of(model: onnx.ModelProto) -> int:
    """The opset of the default domain."""
    return next(imported.version for imported in model.opset_import if imported.domain in ("", "ai.onnx"))


def type_name(element: int) -> str:
    """What JavaScript and numpy call a type of ONNX."""
    dtype = ir.DataType(element)
    return "string" if dtype == ir.DataType.STRING else dtype.numpy().name


def _shape(tensor: Any) -> Sequence[int | str | None]:
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor.shape.dim]

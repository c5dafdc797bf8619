"""Write models to files, with their weights in files of their own where they are too large for one."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx.external_data_helper import uses_external_data

from onward.graph.proto import from_proto


def save_model(
    model: onnx.ModelProto,
    path: str | os.PathLike[str],
    *,
    external_data_folder: str | os.PathLike[str] | None = None,
) -> None:
    """Write a model; weights that it refers to in files of `external_data_folder` are copied to ``<path>.data``."""
    target = Path(path)
    if not any(uses_external_data(tensor) for tensor in model.graph.initializer):
        target.write_bytes(model.SerializeToString())
        return
    copy = from_proto(model)
    ir.external_data.set_base_dir(copy.graph, external_data_folder or Path.cwd())
    ir.save(copy, target, external_data=f"{target.name}.data")

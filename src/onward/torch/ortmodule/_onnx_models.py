"""The graphs of an ORTModule and their files; the names of the original."""

from __future__ import annotations

import torch.onnx

from onward.torch.ortmodule._execution import ONNXModels

__all__ = ["ONNXModels", "_get_onnx_file_name"]


def _get_onnx_file_name(name_prefix: str, name: str, export_mode: torch.onnx.TrainingMode) -> str:
    """The file that a graph is written to by `DebugOptions(save_onnx=True)`."""
    mode = "training" if export_mode == torch.onnx.TrainingMode.TRAINING else "inference"
    return f"{name_prefix}_{name}_{mode}.onnx"

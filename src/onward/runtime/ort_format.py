"""The ORT format, which the smallest builds of onnxruntime read."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from pathlib import Path

from onward.errors import OnwardError


def convert_to_ort_format(
    model: str | os.PathLike[str], custom_op_library: str | os.PathLike[str] | None = None
) -> None:
    """Write ``<model>.ort`` and ``<model>.required_operators.config`` beside a model."""
    from onnxruntime.tools.convert_onnx_models_to_ort import OptimizationStyle, convert_onnx_models_to_ort

    library = None if custom_op_library is None else Path(custom_op_library).resolve()
    path = Path(model)
    with contextlib.redirect_stdout(io.StringIO()) as said, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the tool leaves the closing of files to the interpreter
        convert_onnx_models_to_ort(
            path,
            output_dir=path.parent,
            custom_op_library_path=library,
            optimization_styles=[OptimizationStyle.Fixed],
        )
    if not path.with_suffix(".ort").is_file():
        raise OnwardError(f"onnxruntime could not convert {path.name!r} to the ORT format: {said.getvalue()}")

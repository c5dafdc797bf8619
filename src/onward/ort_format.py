"""Models in onnxruntime's own format (.ort). Pure Python: the device runtime and the graph layer ask the same code."""

from __future__ import annotations

import os

from onward.errors import InvalidModelError


def is_ort_format(model: bytes) -> bool:
    """Whether this is a model in onnxruntime's own format, which cannot be edited; its first 8 bytes are enough."""
    return model[4:8] == b"ORTM"


def refuse_ort_format(path: str | os.PathLike[str]) -> None:
    """Say what an .ort file is, where an .onnx file is needed."""
    with open(path, "rb") as file:
        found = is_ort_format(file.read(8))
    if found:
        raise InvalidModelError(
            f"{os.fspath(path)!r} is in onnxruntime's own format (.ort): a model that onnxruntime has optimised for "
            "inference, which can be run but not be differentiated. Give the .onnx file that it was converted from; "
            "onward.artifacts.generate_artifacts(..., ort_format=True) makes .ort files of that to train with."
        )

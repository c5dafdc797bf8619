"""The forward model that artifacts are made of, as the caller gives it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnx

from onward.errors import InvalidModelError, OnwardError
from onward.graph import provenance
from onward.graph.prepare import load
from onward.graph.proto import to_proto
from onward.ort_format import refuse_ort_format


def forward_model(model: Any, largest: int) -> tuple[onnx.ModelProto, str | None]:
    """The model without external data, and the path of its file if it has one.

    `largest` is the size in bytes above which a ModelProto is refused.
    """
    if isinstance(model, (str, os.PathLike)):
        path = os.fspath(model)
        if not Path(path).is_file():
            raise InvalidModelError(f"there is no model file at {path!r}")
        refuse_ort_format(path)
        try:
            return onnx.load(path, load_external_data=False), path
        except Exception as error:
            raise InvalidModelError(f"{path!r} is not a readable ONNX model: {error}") from error
    if not isinstance(model, onnx.ModelProto):
        raise OnwardError(
            "Please pass in either a string or an ONNX ModelProto for the model (or a path-like object), not "
            f"{type(model).__name__}."
        )
    if not model.HasField("graph"):
        raise InvalidModelError("the ModelProto has no graph; was it loaded from a file?")
    if _is_larger(model, largest):
        raise OnwardError(
            "the model is larger than 2 GB, which is more than a ModelProto can be serialized to. Please pass in the "
            "path of its file instead."
        )
    return model, None


def _is_larger(model: onnx.ModelProto, size: int) -> bool:
    try:
        return model.ByteSize() > size
    except Exception:  # protobuf refuses to count further than its limit
        return True


def with_separated_parameters(model: onnx.ModelProto | str) -> onnx.ModelProto:
    """The model with tensors of their own for parameters that torch's exporter merged."""
    separated = load(model)
    provenance.separate_shared(separated)
    return to_proto(separated)

"""Open onnxruntime sessions for training, and read what models say about themselves."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from onward.errors import InvalidModelError, OnwardError
from onward.ort_format import is_ort_format
from onward.runtime import wire

_FOLDER = "session.model_external_initializers_file_folder_path"
_DEFAULTS = {
    # Threads of a session wait for work by spinning, even between its runs. A training step goes from session to
    # session: those of the last one must not keep the cores from the next.
    "session.force_spinning_stop": "1",
    # Within a run, they wait while others work on what cannot be shared. Microseconds: longer than most such nodes
    # take, because it takes a sleeping thread a while to wake up.
    "session.intra_op.spin_duration_us": "5000",
}

# onnxruntime's names of element types.
NUMPY_TYPES: dict[str, np.dtype] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(double)": np.dtype(np.float64),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(int64)": np.dtype(np.int64),
    "tensor(int32)": np.dtype(np.int32),
    "tensor(int16)": np.dtype(np.int16),
    "tensor(int8)": np.dtype(np.int8),
    "tensor(uint64)": np.dtype(np.uint64),
    "tensor(uint32)": np.dtype(np.uint32),
    "tensor(uint16)": np.dtype(np.uint16),
    "tensor(uint8)": np.dtype(np.uint8),
    "tensor(bool)": np.dtype(np.bool_),
}
_TYPE_NAMES = {dtype: name for name, dtype in NUMPY_TYPES.items()}


def type_name(dtype: np.dtype) -> str:
    """What onnxruntime calls tensors of this dtype."""
    return _TYPE_NAMES.get(dtype) or f"tensor({dtype.name})"


@dataclass(frozen=True)
class InMemory:
    """A model that is in no file; `path` is what errors call it, in the folder of the external data it refers to."""

    content: bytes = field(repr=False)
    path: Path


ModelSource = str | os.PathLike[str] | InMemory


def path_of(model: ModelSource) -> Path:
    """Where a model is, or would be."""
    return model.path if isinstance(model, InMemory) else Path(model)


def read_model(model: ModelSource, what: str = "model") -> bytes:
    """The bytes of a model."""
    if isinstance(model, InMemory):
        return model.content
    file = Path(model)
    if not file.is_file():
        raise OnwardError(f"there is no {what} at {str(file)!r}")
    return file.read_bytes()


def metadata_of(model: bytes, options: onnxruntime.SessionOptions | None = None) -> dict[str, str]:
    """The metadata of a model in either format."""
    if is_ort_format(model):
        return dict(open_session(model, options=options).get_modelmeta().custom_metadata_map)
    return wire.parse(model).metadata


def open_session(
    model: bytes,
    *,
    folder: str | os.PathLike[str] | None = None,
    options: onnxruntime.SessionOptions | None = None,
    providers: Sequence[Any] = ("CPUExecutionProvider",),
    as_written: bool = False,
) -> onnxruntime.InferenceSession:
    """A session of a model in memory.

    `folder` is where it finds its external data, if it has any; `as_written` leaves its nodes as they are.
    """
    options = suitable_options(options)
    if folder is not None:
        options.add_session_config_entry(_FOLDER, str(folder))
    level = options.graph_optimization_level
    if as_written:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        with refusals_explained(providers):
            return onnxruntime.InferenceSession(model, options, providers=list(providers))
    finally:
        options.graph_optimization_level = level  # they may be the caller's


@contextlib.contextmanager
def refusals_explained(providers: Sequence[Any]) -> Iterator[None]:
    """Where onnxruntime refuses to load a model, say what that means."""
    try:
        yield
    except Exception as error:  # onnxruntime's exceptions have no common base but this
        raise InvalidModelError(f"onnxruntime cannot load the model: {_said(error, providers)}") from error


def _said(error: Exception, providers: Sequence[Any]) -> str:
    """What onnxruntime says, after what it means."""
    missing = re.search(r"Could not find an implementation for (\w+)\((\d+)\) node", str(error))
    mistyped = re.search(r"Type '(tensor\(\w+\))' of input parameter \(.*\) of operator \((\w+)\)", str(error))
    if missing is not None:
        kernel = f"{missing[1]} (opset {missing[2]})"
        what = f"it has no kernel of {kernel} for the element type that the model computes with"
    elif mistyped is not None:
        what = f"it has no {mistyped[2]} for {mistyped[1]}"
    else:
        return str(error)
    return f"{what}, on {providers[0]!r}. Convert the model to float32, or use a device that has one. ({error})"


def _is_set(options: onnxruntime.SessionOptions, key: str) -> bool:
    try:
        options.get_session_config_entry(key)
    except RuntimeError:
        return False
    return True


def suitable_options(options: onnxruntime.SessionOptions | None) -> onnxruntime.SessionOptions:
    """Options for training, in place: what the caller has not decided is set."""
    if options is None:
        options = default_options()
    # A plan of all memory, made after the first run, is kept beside what that run took: a quarter to a half more
    # altogether, and not faster.
    options.enable_mem_pattern = False
    for key, value in _DEFAULTS.items():
        if not _is_set(options, key):
            options.add_session_config_entry(key, value)
    return options


def default_options() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised, they need not be printed too
    return options

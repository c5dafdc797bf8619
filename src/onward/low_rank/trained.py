"""What pairs have become: read from wherever training has left them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onward.errors import OnwardError
from onward.graph.naming import quoted
from onward.graph.prepare import load
from onward.runtime import checkpoint
from onward.runtime.adapter import is_adapter, read_adapter

_KINDS = (
    "a Trainer, a dict of arrays, a checkpoint, a model with the pairs in it (what `Trainer.export` writes), or an "
    ".onnx_adapter"
)


def read_others(source: Any, names: Collection[str]) -> dict[str, np.ndarray]:
    """What else has been trained, or has been kept as it was: all tensors but those of these names."""
    return {name: np.asarray(array) for name, array in _tensors(source)[0].items() if name not in names}


def read_pairs(source: Any, names: Mapping[str, tuple[int, ...]]) -> tuple[dict[str, np.ndarray], bool]:
    """The tensors of these names and shapes, and whether they come from an adapter, where the scaling is in B."""
    found, scaled = _tensors(source)
    missing = [name for name in names if name not in found]
    if missing:
        raise OnwardError(f"{_spoken(source)} has no {quoted(missing)}: it does not belong to these low-rank pairs")
    arrays = {name: np.asarray(found[name]) for name in names}
    for name, array in arrays.items():
        if array.shape != names[name]:
            raise OnwardError(
                f"{name!r} has the shape {list(array.shape)} in {_spoken(source)}, and not {list(names[name])}: it "
                "belongs to pairs of another rank, or to another model"
            )
        if not np.isfinite(array.astype(np.float32)).all():
            raise OnwardError(f"{name!r} has elements that are NaN or infinite in {_spoken(source)}")
    return arrays, scaled


def _tensors(source: Any) -> tuple[Mapping[str, Any], bool]:
    if isinstance(source, Mapping):
        return source, False
    if hasattr(source, "snapshot"):
        return source.snapshot(), False
    if isinstance(source, (onnx.ModelProto, ir.Model)):
        return _initializers(source), False
    if not isinstance(source, (str, os.PathLike)):
        raise OnwardError(f"trained pairs are taken from {_KINDS}, not from {type(source).__name__}")
    path = Path(source)
    if not path.exists():
        raise OnwardError(f"there is no file {str(path)!r} with trained pairs")
    if path.is_file() and is_adapter(path):
        return read_adapter(path), True
    if path.suffix == ".onnx":
        return _initializers(path), False
    state = checkpoint.load(path)
    return {name: state.tensor(name) for name in (*state.trainable, *state.frozen)}, False


def _initializers(model: onnx.ModelProto | ir.Model | Path) -> dict[str, np.ndarray]:
    values = load(model).graph.initializers.values()
    return {
        value.name or "": value.const_value.numpy()
        for value in values
        if value.const_value is not None and value.const_value.dtype != ir.DataType.STRING
    }


def _spoken(source: Any) -> str:
    if isinstance(source, (str, os.PathLike)):
        return repr(os.fspath(source))
    return f"the {type(source).__name__} that was given"

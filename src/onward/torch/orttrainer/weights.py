"""The weights of an ONNX model: its initializers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from onward.errors import OnwardError
from onward.torch.orttrainer.engine import array_from


def initializers(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """All of them by name."""
    return {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}


def update_initializers(model: onnx.ModelProto, arrays: Mapping[str, Any]) -> None:
    """Write weights into a model."""
    for initializer in model.graph.initializer:
        if initializer.name not in arrays:
            continue
        array = np.asarray(array_from(arrays[initializer.name]))
        if array.shape != tuple(initializer.dims):
            raise OnwardError(
                f"{initializer.name!r} has shape {list(array.shape)} in the state, but {list(initializer.dims)} in the "
                "model"
            )
        wanted = onnx.helper.tensor_dtype_to_np_dtype(initializer.data_type)
        made = onnx.numpy_helper.from_array(array.astype(wanted, copy=False), initializer.name)
        initializer.CopyFrom(made)

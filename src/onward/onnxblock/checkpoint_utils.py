"""Checkpoints of parameters that are protos."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

import numpy as np
import onnx

from onward.errors import OnwardError
from onward.runtime import checkpoint
from onward.runtime.state import State


def save_checkpoint(
    parameters: tuple[Sequence[onnx.TensorProto], Sequence[onnx.TensorProto]],
    path_to_checkpoint: str | os.PathLike[str],
    nominal_checkpoint: bool = False,
) -> None:
    """Write the trainable and the frozen parameters of `TrainingBlock.parameters()`; a nominal one has no values."""
    if parameters is None:
        raise OnwardError("No checkpoint parameters provided.")
    trainable, frozen = parameters
    repeated = [name for name, count in Counter(p.name for p in (*trainable, *frozen)).items() if count > 1]
    if repeated:
        raise OnwardError(f"several parameters have the same name: {', '.join(map(repr, repeated))}")
    checkpoint.save(State(_arrays(trainable), _arrays(frozen)), path_to_checkpoint, nominal=nominal_checkpoint)


def load_checkpoint_to_model(path_to_checkpoint: str | os.PathLike[str], model: onnx.ModelProto) -> None:
    """Give the initializers of `model`, in place, the values that the checkpoint has for their names."""
    state = checkpoint.load(path_to_checkpoint)
    if state.nominal:
        raise OnwardError(
            "Cannot load a nominal checkpoint to a model proto. A nominal checkpoint has no values; load the complete "
            "checkpoint."
        )
    known = {**state.trainable, **state.frozen}
    for tensor in model.graph.initializer:
        if tensor.name in known:
            array = onnx.numpy_helper.from_array(known[tensor.name], tensor.name)
            tensor.CopyFrom(array)


def _arrays(tensors: Sequence[onnx.TensorProto]) -> dict[str, np.ndarray]:
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in tensors}

"""Run models on onnxruntime."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto

Feeds = dict[str, np.ndarray]


def run_on_runtime(model: onnx.ModelProto, feeds: Feeds) -> dict[str, np.ndarray]:
    """Run a model on onnxruntime's CPU provider."""
    session = _session(model.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    needed = {value.name for value in session.get_inputs()}
    results = session.run(None, {k: v for k, v in feeds.items() if k in needed})
    return dict(zip(names, results, strict=True))


@functools.lru_cache(maxsize=4)
def _session(model: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1  # threads of a small model only wait
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def floating_outputs(model: onnx.ModelProto) -> list[str]:
    floating = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
    return [output.name for output in model.graph.output if output.type.tensor_type.elem_type in floating]

"""Small forward models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str | None]],
    outputs: Mapping[str, Sequence[int | str | None]],
    weights: Mapping[str, np.ndarray],
    *,
    opset: int = 17,
    dtype: int = TensorProto.FLOAT,
    ir_version: int = 8,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "forward",
        [helper.make_tensor_value_info(name, dtype, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, dtype, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def weights(shapes: Mapping[str, Sequence[int]], dtype: type = np.float32) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: (rng.standard_normal(shape) * 0.5).astype(dtype) for name, shape in shapes.items()}


MLP = {"fc1.weight": (4, 8), "fc1.bias": (8,), "fc2.weight": (8, 3), "fc2.bias": (3,)}


def mlp(opset: int = 17, dtype: type = np.float32) -> onnx.ModelProto:
    """x [N, 4] -> hidden [N, 8] -> y [N, 3]."""
    nodes = [
        helper.make_node("Gemm", ["x", "fc1.weight", "fc1.bias"], ["a"], "fc1"),
        helper.make_node("Relu", ["a"], ["hidden"], "relu"),
        helper.make_node("Gemm", ["hidden", "fc2.weight", "fc2.bias"], ["y"], "fc2"),
    ]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return model(nodes, {"x": ["N", 4]}, {"y": ["N", 3]}, weights(MLP, dtype), opset=opset, dtype=kind)


TWO_HEADS = {"weight1": (4, 3), "bias1": (3,), "weight2": (4, 2), "bias2": (2,), "weight3": (4, 4), "bias3": (4,)}


def two_heads() -> onnx.ModelProto:
    """x [N, 4] -> a shared layer (weight3) -> output1 [N, 3] and output2 [N, 2]."""
    nodes = [
        helper.make_node("Gemm", ["x", "weight3", "bias3"], ["shared"], "body"),
        helper.make_node("Gemm", ["shared", "weight1", "bias1"], ["output1"], "head1"),
        helper.make_node("Gemm", ["shared", "weight2", "bias2"], ["output2"], "head2"),
    ]
    return model(nodes, {"x": ["N", 4]}, {"output1": ["N", 3], "output2": ["N", 2]}, weights(TWO_HEADS))


def identity(
    shape: Sequence[int | str | None], dtype: int = TensorProto.FLOAT, opset: int = 17, outputs: int = 1
) -> onnx.ModelProto:
    """Outputs y (y0, y1, ...) that are inputs x (x0, x1, ...), for losses alone."""
    suffixes = [""] if outputs == 1 else [str(i) for i in range(outputs)]
    nodes = [helper.make_node("Identity", [f"x{s}"], [f"y{s}"], f"identity{s}") for s in suffixes]
    return model(
        nodes, {f"x{s}": shape for s in suffixes}, {f"y{s}": shape for s in suffixes}, {}, opset=opset, dtype=dtype
    )


def run(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(feeds)), strict=True))


def names(values: Sequence[onnx.ValueInfoProto]) -> list[str]:
    return [value.name for value in values]


def operators(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]

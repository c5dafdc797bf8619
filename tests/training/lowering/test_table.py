"""Gradients of lookups in other forms are those of the rule."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from onward import gradient
from onward.testing import run_on_runtime
from onward.training.lowering import faster_rules


def model_of(shape, indices, axis, *, constant, dtype=TensorProto.FLOAT):
    x = helper.make_tensor_value_info("x", dtype, shape)
    elem_type = helper.np_dtype_to_tensor_dtype(indices.dtype)
    index = helper.make_tensor_value_info("indices", elem_type, [None] * indices.ndim)
    node = helper.make_node("Gather", ["x", "indices"], ["y"], "lookup", axis=axis)
    rank = len(shape) + indices.ndim - 1
    y = helper.make_tensor_value_info("y", dtype, [None] * rank)
    weights = [numpy_helper.from_array(indices, "indices")] if constant else []
    graph = helper.make_graph([node], "lookup", [x] if constant else [x, index], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


# Shape of x, indices, axis, whether they are constants, and the operators of the gradient that takes another way.
CASES = {
    "few rows": ([3, 2], [[0, 1, -1], [2, 1, 1]], 0, False, {"MatMul"}),
    "64 rows": ([64, 2], [5, 63, -64], 0, False, {"MatMul"}),
    "65 rows": ([65, 2], [5, 63, -65], 0, False, {"ScatterElements"}),
    "65 long rows": ([65, 65], [5, 63, -65], 0, False, {"MatMul"}),
    "one row": ([1, 2], [0, -1, 0], 0, False, {"MatMul"}),
    "no index": ([3, 2], [], 0, False, {"MatMul"}),
    "a number": ([3, 2], 1, 0, False, {"MatMul"}),
    "another axis": ([2, 3], [2, 0, 2], 1, False, {"ScatterElements"}),
    "three axes": ([3, 2, 2], [2, 0, 2], 0, False, {"ScatterElements"}),
    "any number of rows": (["R", 2], [2, 0, 2], 0, False, {"ScatterElements"}),
    "places": ([5, 2], [4, 1], 0, True, {"Pad", "Gather"}),
    "places, all of them": ([3, 2], [[2], [0], [-2]], 0, True, {"Gather"}),
    "places along another axis": ([2, 4, 2], [3, -4], 1, True, {"Pad", "Gather"}),
    "places that repeat": ([70, 2], [3, 1, -67], 0, True, {"ScatterElements"}),
    "places of an unknown number": (["R", 2], [3, 1], 0, True, {"ScatterElements"}),
    "places that count up": ([5, 2], [2, 3], 0, True, {"Pad"}),
    "places that count up to the end": ([5, 2], [-2, -1], 0, True, {"Pad"}),
}
WAYS = {"Gather", "MatMul", "Pad", "ScatterElements"}


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(("shape", "indices", "axis", "constant", "way"), CASES.values(), ids=CASES)
def test_gather(shape, indices, axis, constant, way, dtype):
    indices = np.array(indices, dtype)
    model = model_of(shape, indices, axis, constant=constant)
    plain = gradient(model, wrt=["x"])
    with faster_rules():
        faster = gradient(model, wrt=["x"])
    assert {node.op_type for node in faster.graph.node[1:]} & WAYS == way
    random = np.random.default_rng(0)
    x = random.normal(size=[9 if isinstance(size, str) else size for size in shape]).astype(np.float32)
    feeds = {"x": x} if constant else {"x": x, "indices": indices}
    y = run_on_runtime(model, feeds)["y"]
    # Integers, whose sums are exact in any order.
    feeds["y_grad"] = random.integers(-3, 4, y.shape).astype(np.float32)
    expected, got = (run_on_runtime(m, feeds)["x_grad"] for m in (plain, faster))
    np.testing.assert_array_equal(got, expected, strict=True)


@pytest.mark.parametrize("rows", [16, 64])
def test_sums_in_float16(rows):
    """In float16 no more than 2048 ones can be counted; products count in float32."""
    table, indices = np.zeros((rows, 2), np.float16), np.zeros(3000, np.int64)
    with faster_rules():
        model = gradient(model_of(table.shape, indices, 0, constant=False, dtype=TensorProto.FLOAT16), wrt=["x"])
    feeds = {"x": table, "indices": indices, "y_grad": np.ones((3000, 2), np.float16)}
    got = run_on_runtime(model, feeds)["x_grad"]
    assert got[0].tolist() == [3000, 3000]
    assert not got[1:].any()

"""Gradients of pooling."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

from onward import gradient
from onward.testing import check_vjp, run_on_runtime


def distinct(*shape, seed=0):
    """Numbers at least 0.05 apart, so that no small step changes which one is the largest."""
    order = np.random.default_rng(seed).permutation(int(np.prod(shape))).reshape(shape)
    return (order - order.size / 2) / 20


# The reference evaluator's Indices are wrong for overlapping windows; onnxruntime has MaxPool for double.
MAX_POOL = {
    "1d": ([2, 2, 7], {"kernel_shape": [3], "strides": [2]}),
    "2d, no overlap": ([1, 2, 4, 5], {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "2d, overlap": ([2, 1, 4, 4], {"kernel_shape": [3, 2]}),
    "2d, pads": ([1, 2, 4, 3], {"kernel_shape": [3, 2], "pads": [1, 0, 2, 1], "strides": [2, 1]}),
    "2d, dilations": ([1, 2, 5, 4], {"kernel_shape": [2, 2], "dilations": [3, 2]}),
    "2d, ceil_mode": ([1, 1, 5, 6], {"kernel_shape": [2, 3], "strides": [2, 2], "ceil_mode": 1}),
    "2d, storage_order": ([2, 2, 3, 4], {"kernel_shape": [2, 2], "storage_order": 1}),
    "2d, SAME_UPPER": ([1, 2, 4, 3], {"kernel_shape": [2, 3], "strides": [1, 2], "auto_pad": "SAME_UPPER"}),
    "2d, SAME_LOWER": ([1, 2, 4, 3], {"kernel_shape": [2, 3], "strides": [1, 2], "auto_pad": "SAME_LOWER"}),
    "2d, VALID": ([1, 2, 4, 3], {"kernel_shape": [2, 3], "strides": [2, 1], "auto_pad": "VALID"}),
    "3d": ([1, 2, 3, 3, 2], {"kernel_shape": [2, 2, 2], "pads": [0, 1, 0, 0, 0, 1]}),
    "3d, storage_order": ([1, 2, 2, 3, 4], {"kernel_shape": [2, 2, 2], "storage_order": 1}),
}


@pytest.mark.parametrize("case", MAX_POOL)
def test_max_pool(case):
    shape, attributes = MAX_POOL[case]
    check_vjp("MaxPool", [distinct(*shape)], run=run_on_runtime, **attributes)


def test_max_pool_with_indices_output():
    check_vjp("MaxPool", [distinct(1, 2, 4, 4)], run=run_on_runtime, outputs=2, of=[0], kernel_shape=[2, 2])


@pytest.mark.parametrize("opset", [7, 8, 11])
@pytest.mark.parametrize("strides", [[1, 2], [2, 2]])
def test_max_pool_of_old_opsets(opset, strides):
    """The model moves to opset 8 to have indices, to 11 to scatter, or to 16 to add where windows overlap."""
    x, attributes = distinct(1, 1, 4, 4), {"kernel_shape": [2, 2], "strides": strides}
    wanted = gradients(one_node("MaxPool", x.shape, **attributes), x)
    np.testing.assert_array_equal(gradients(one_node("MaxPool", x.shape, opset, **attributes), x), wanted)


def test_max_pool_ties_follow_torch():
    """The first of equal elements gets it all, as in torch."""
    x = torch.zeros(1, 1, 4, 4, requires_grad=True)
    torch.nn.functional.max_pool2d(x, 2).sum().backward()
    got = gradients(one_node("MaxPool", [1, 1, 4, 4], kernel_shape=[2, 2], strides=[2, 2]), np.zeros((1, 1, 4, 4)))
    np.testing.assert_array_equal(got, x.grad)


def one_node(op_type, shape, opset=18, **attributes):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(shape))
    graph = helper.make_graph([helper.make_node(op_type, ["x"], ["y"], **attributes)], "pool", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def gradients(model, x, dy=None):
    x = np.asarray(x, np.float32)
    if dy is None:
        dy = np.ones_like(run_on_runtime(model, {"x": x})["y"])
    return run_on_runtime(gradient(model, wrt=["x"]), {"x": x, "y_grad": dy})["x_grad"]


AVERAGE_POOL = {
    "1d": ([2, 2, 6], {"kernel_shape": [3]}),
    "2d, no overlap": ([1, 2, 5, 4], {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "2d, pads": ([1, 2, 4, 3], {"kernel_shape": [3, 2], "pads": [1, 0, 2, 1], "strides": [2, 1]}),
    "2d, ceil_mode": ([1, 1, 5, 6], {"kernel_shape": [2, 3], "strides": [2, 2], "ceil_mode": 1}),
    "2d, ceil_mode and pads": (
        [1, 2, 4, 4],
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1},
    ),
    "2d, dilations": ([1, 2, 5, 4], {"kernel_shape": [2, 2], "dilations": [3, 2], "pads": [1, 1, 0, 1]}),
    "2d, VALID": ([1, 2, 4, 3], {"kernel_shape": [2, 3], "strides": [2, 1], "auto_pad": "VALID"}),
    "2d, SAME_UPPER": ([1, 2, 5, 4], {"kernel_shape": [2, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    "2d, SAME_LOWER": ([1, 2, 5, 4], {"kernel_shape": [4, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    "3d": ([1, 2, 3, 3, 2], {"kernel_shape": [2, 2, 2], "pads": [0, 1, 0, 0, 0, 1]}),
}


@pytest.mark.parametrize("include_pad", [0, 1])
@pytest.mark.parametrize("case", AVERAGE_POOL)
def test_average_pool(case, include_pad):
    shape, attributes = AVERAGE_POOL[case]
    check_vjp("AveragePool", [distinct(*shape)], opset=19, count_include_pad=include_pad, **attributes)


@pytest.mark.parametrize("opset", [7, 10, 22])
def test_average_pool_of_other_opsets(opset):
    x = distinct(1, 2, 4, 4)
    check_vjp("AveragePool", [x], opset=opset, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 0, 0])


@pytest.mark.parametrize("op_type", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
@pytest.mark.parametrize("shape", [[2, 3, 4], [2, 3, 2, 3], [1, 2, 2, 1, 3]])
def test_global_pool(op_type, shape):
    check_vjp(op_type, [distinct(*shape) + 0.01])


def test_global_max_pool_splits_ties():
    x = [[[1, 3, 3, 0]]]
    np.testing.assert_array_equal(gradients(one_node("GlobalMaxPool", [1, 1, 4]), x), [[[0, 0.5, 0.5, 0]]])


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ([1, 2, 6], {"kernel_shape": [3], "strides": [2]}),
        ([1, 1, 4, 5], {"kernel_shape": [2, 3], "pads": [1, 1, 0, 1]}),
        ([1, 1, 5, 4], {"kernel_shape": [2, 2], "dilations": [3, 2]}),
    ],
)
def test_lp_pool(shape, attributes, p):
    check_vjp("LpPool", [distinct(*shape) + 0.01], p=p, **attributes)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_pool_ceil_mode(p):
    """The reference evaluator scales windows that reach beyond the end; onnxruntime has LpPool for float only."""
    check_vjp(
        "LpPool",
        [distinct(1, 1, 5, 4) + 0.3],
        p=p,
        kernel_shape=[2, 2],
        strides=[2, 3],
        ceil_mode=1,
        dtype=np.float32,
        run=run_on_runtime,
        second_order=False,
        tolerance=1e-2,
    )


@pytest.mark.parametrize("size", [1, 3, 5])
def test_lrn(size):
    # The reference evaluator takes the number of samples for that of channels: they are equal here.
    x = np.random.default_rng(0).normal(size=(4, 4, 1, 3))
    check_vjp("LRN", [x], size=size, alpha=0.7, beta=0.6, bias=1.5)


def test_max_unpool():
    x = distinct(1, 2, 2, 2)
    indices = np.array([[[[5, 7], [13, 15]], [[16, 18], [26, 31]]]])
    check_vjp("MaxUnpool", [x, indices], kernel_shape=[2, 2], strides=[2, 2])


def test_max_unpool_to_a_given_shape():
    """As onnxruntime has it, which counts the indices in that shape; it has MaxUnpool for float only."""
    inputs = [distinct(1, 1, 2, 2), np.array([[[[5, 7], [13, 15]]]]), np.array([1, 1, 5, 5])]
    options = {"dtype": np.float32, "run": run_on_runtime, "second_order": False, "tolerance": 1e-3}
    check_vjp("MaxUnpool", inputs, constants=[2], kernel_shape=[2, 2], strides=[2, 2], **options)


TORCH = {
    "MaxPool": (
        lambda x: torch.nn.functional.max_pool2d(x, 3, 2, 1, ceil_mode=True),
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1},
    ),
    "AveragePool": (
        lambda x: torch.nn.functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1},
    ),
    "GlobalAveragePool": (lambda x: x.mean((2, 3), keepdim=True), {}),
}


@pytest.mark.parametrize("op_type", TORCH)
@pytest.mark.parametrize("shape", [["N", 3, 6, 8], ["N", 3, "H", "W"]])
def test_parity_with_torch(op_type, shape):
    function, attributes = TORCH[op_type]
    x = torch.tensor(distinct(2, 3, 6, 8), dtype=torch.float32, requires_grad=True)
    y = function(x)
    dy = np.random.default_rng(1).normal(size=y.shape).astype(np.float32)
    y.backward(torch.tensor(dy))
    got = gradients(one_node(op_type, shape, **attributes), x.detach().numpy(), dy)
    np.testing.assert_allclose(got, x.grad, rtol=1e-5, atol=1e-6)

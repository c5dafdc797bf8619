"""Operators that write by index."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

import onward
from onward.testing import check_vjp, run_on_runtime


def array(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


REDUCTIONS = [("none", 13), ("add", 16), ("mul", 16), ("max", 18), ("min", 18)]

ELEMENTS = {
    "distinct": (np.array([[0, 2, 1, -1], [1, 0, -2, 0]]), 0),
    "repeated": (np.array([[0, 2, 1, -1], [0, 2, 1, 0]]), 0),
    "along the last axis": (np.array([[3, 0], [1, 1], [-1, -1]]), -1),
}


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "computed"])
@pytest.mark.parametrize("case", ELEMENTS)
@pytest.mark.parametrize(("reduction", "opset"), REDUCTIONS)
def test_scatter_elements(case, reduction, opset, constant):
    indices, axis = ELEMENTS[case]
    inputs = [array(3, 4), indices, array(*indices.shape, seed=1)]
    attributes = {} if reduction == "none" else {"reduction": reduction}
    # The reference evaluator's GatherElements takes no negative axes.
    run, known = run_on_runtime if axis < 0 else None, [1] if constant else []
    check_vjp("ScatterElements", inputs, opset=opset, constants=known, run=run, axis=axis, **attributes)


TUPLES = {
    "rows": np.array([[0], [2]]),
    "repeated rows": np.array([[0], [-1], [2]]),
    "elements": np.array([[0, 1], [-1, 2]]),
    "repeated elements": np.array([[[0, 1], [-1, 2]], [[2, 2], [0, 0]]]),
    "one": np.array([1]),
}


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "computed"])
@pytest.mark.parametrize("case", TUPLES)
@pytest.mark.parametrize(("reduction", "opset"), REDUCTIONS)
def test_scatter_nd(case, reduction, opset, constant):
    indices, data = TUPLES[case], array(3, 4)
    updates = array(*indices.shape[:-1], *data.shape[indices.shape[-1] :], seed=1)
    attributes = {} if reduction == "none" else {"reduction": reduction}
    check_vjp("ScatterND", [data, indices, updates], opset=opset, constants=[1] if constant else [], **attributes)


@pytest.mark.parametrize("opset", [9, 10])
def test_scatter_of_old_opsets(opset):
    # The reference evaluator has no Scatter.
    inputs = [array(3, 4), np.array([[0, 2], [1, 0]]), array(2, 2, seed=1)]
    check_vjp("Scatter", inputs, opset=opset, run=run_on_runtime, axis=0)


@pytest.mark.parametrize("op_type", ["ScatterElements", "ScatterND"])
def test_products_with_zeros(op_type):
    """A zero that is alone among the factors of an element has a slope; of two zeros none has."""
    data = np.array([1.5, 0.0, 2.0, 0.0, 3.0])
    indices, updates = np.array([0, 0, 1, 2, 2, 3]), np.array([0.0, 2.0, 3.0, 0.0, 0.0, 0.0])
    if op_type == "ScatterND":
        indices = indices[:, None]
    # The second derivative through a zero is not followed: like ReduceProd's it is that of the other factors.
    check_vjp(op_type, [data, indices, updates], opset=16, second_order=False, reduction="mul")


@pytest.mark.parametrize("op_type", ["ScatterElements", "ScatterND"])
@pytest.mark.parametrize("reduction", ["max", "min"])
def test_two_that_tie_get_half_each(op_type, reduction):
    """Which is what central differences see."""
    data, updates, indices = np.array([1.0, 5.0, 2.0]), np.array([1.0, 7.0, -7.0]), np.array([0, 1, 2])
    if op_type == "ScatterND":
        indices = indices[:, None]
    check_vjp(op_type, [data, indices, updates], opset=18, second_order=False, reduction=reduction)


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_three_that_tie_get_a_third_each(reduction):
    """As in torch's scatter_reduce; differences cannot tell."""
    data = torch.tensor([1.0, 4.0], requires_grad=True)
    updates = torch.tensor([1.0, 1.0, 4.0], requires_grad=True)
    indices, dy = torch.tensor([0, 0, 1]), torch.tensor([3.0, 5.0])
    data.scatter_reduce(0, indices, updates, f"a{reduction}").backward(dy)

    values = [
        helper.make_tensor_value_info("data", TensorProto.FLOAT, [2]),
        helper.make_tensor_value_info("indices", TensorProto.INT64, [3]),
        helper.make_tensor_value_info("updates", TensorProto.FLOAT, [3]),
    ]
    node = helper.make_node("ScatterElements", ["data", "indices", "updates"], ["y"], reduction=reduction)
    graph = helper.make_graph([node], "tie", values, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    feeds = {"data": data, "indices": indices, "updates": updates, "y_grad": dy}
    results = run_on_runtime(
        onward.gradient(model, wrt=["data", "updates"]),
        {name: value.detach().numpy() for name, value in feeds.items()},
    )
    assert data.grad is not None
    assert updates.grad is not None
    np.testing.assert_allclose(results["data_grad"], data.grad.numpy(), rtol=1e-6)
    np.testing.assert_allclose(results["updates_grad"], updates.grad.numpy(), rtol=1e-6)


# onnxruntime 1.31 runs TensorScatter on CUDA only.
@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize(
    ("cache", "update", "write", "axis"),
    [
        ((2, 3, 5, 2), (2, 3, 2, 2), [1, 3], None),
        ((2, 5, 2), (2, 2, 2), [0, 2], -2),
        ((2, 2, 4), (2, 2, 3), [1, 0], 2),
        ((2, 4, 3), (2, 2, 3), None, 1),
    ],
)
def test_tensor_scatter(mode, cache, update, write, axis):
    random = np.random.default_rng(0)
    inputs = [random.normal(size=cache), random.normal(size=update)]
    if write is not None:
        inputs.append(np.array(write) + (2 if mode == "circular" else 0))
    attributes = {} if axis is None else {"axis": axis}
    check_vjp("TensorScatter", inputs, opset=24, mode=mode, on_runtime=False, **attributes)

"""The determinant."""

import numpy as np
import pytest
import torch
from onnx import helper

import onward
from onward.testing import check_vjp, run_on_runtime


def array(*shape):
    return np.random.default_rng(0).normal(size=shape)


@pytest.mark.parametrize("opset", [11, 22])
@pytest.mark.parametrize("x", [array(1, 1), array(2, 2), array(3, 3), array(2, 3, 3), array(2, 1, 2, 2)])
def test_det(opset, x):
    # onnxruntime has no kernel of opset 22.
    check_vjp("Det", [x], opset=opset, on_runtime=opset == 11)


def test_det_of_a_singular_matrix():
    """Where an inverse does not exist: of rank n - 1 the gradient has rank 1, of a lower rank it is zero."""
    column = array(3, 1)
    check_vjp("Det", [column @ column.T + np.diag([1.0, 0, 0])], opset=11)
    check_vjp("Det", [column @ column.T], opset=11)


def test_det_as_torch():
    x, dy = array(4, 3, 3).astype(np.float32), np.arange(1, 5, dtype=np.float32)
    value = helper.make_tensor_value_info("x", 1, ["batch", "n", "n"])
    output = helper.make_tensor_value_info("y", 1, None)
    graph = helper.make_graph([helper.make_node("Det", ["x"], ["y"])], "det", [value], [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    tensor = torch.tensor(x, requires_grad=True)
    torch.linalg.det(tensor).backward(torch.tensor(dy))
    got = run_on_runtime(onward.gradient(model, wrt=["x"]), {"x": x, "y_grad": dy})["x_grad"]
    np.testing.assert_allclose(got, tensor.grad, rtol=1e-4, atol=1e-5)

"""Operators that accumulate along an axis."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import onward
from onward.testing import check_vjp, run_on_reference


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("constant", [True, False])
def test_cumsum(axis, exclusive, reverse, constant):
    x = np.random.default_rng(0).normal(size=(3, 4))
    inputs = [x, np.array(axis, np.int64)]
    check_vjp("CumSum", inputs, opset=14, constants=[1] if constant else [], exclusive=exclusive, reverse=reverse)


def test_cumsum_of_opset_11():
    check_vjp("CumSum", [np.random.default_rng(0).normal(size=5), np.array(0, np.int32)], opset=11)


ZEROS = np.array([[1.5, 0, 2, -1], [0, 0.5, 0, 3], [2, -1, 0.3, 0], [1, 2, 3, 4]])


# onnxruntime 1.31 has no kernel of CumProd, which came with opset 26.
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("zeros", [True, False])
def test_cumprod(axis, zeros, exclusive, reverse):
    """With one zero, several, and none in a line; beyond the first derivative only without."""
    x = ZEROS if zeros else np.random.default_rng(0).normal(size=(3, 4))
    check_vjp(
        "CumProd",
        [x, np.array(axis)],
        opset=26,
        exclusive=exclusive,
        reverse=reverse,
        second_order=not zeros,
        on_runtime=False,
    )


def test_cumprod_as_torch():
    x = torch.tensor(ZEROS, requires_grad=True)
    dy = np.random.default_rng(1).normal(size=ZEROS.shape)
    torch.cumprod(x, 1).backward(torch.tensor(dy))
    values = [helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["N", "M"])]
    axis = numpy_helper.from_array(np.array(1), "axis")
    output = helper.make_tensor_value_info("y", TensorProto.DOUBLE, ["N", "M"])
    graph = helper.make_graph([helper.make_node("CumProd", ["x", "axis"], ["y"])], "f", values, [output], [axis])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 26)], ir_version=13)
    got = run_on_reference(onward.gradient(model, wrt=["x"]), {"x": ZEROS, "y_grad": dy})["x_grad"]
    np.testing.assert_allclose(got, x.grad, rtol=1e-9, atol=1e-12)

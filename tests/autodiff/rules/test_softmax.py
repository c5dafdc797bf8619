"""Softmax and LogSoftmax of both generations."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import onward
from onward.testing import check_vjp, run_on_runtime

X = np.random.default_rng(0).normal(size=(2, 3, 4))


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize(
    ("opset", "attributes"),
    [
        (13, {}),
        (13, {"axis": 0}),
        (18, {"axis": 1}),
        (22, {"axis": -2}),
        # Up to opset 12 all axes from `axis` on are one, and `axis` is 1 unless given.
        (12, {}),
        (12, {"axis": 2}),
        (12, {"axis": -2}),
        (12, {"axis": 0}),
        (9, {"axis": 1}),
    ],
)
def test_softmax(op_type, opset, attributes):
    # The reference evaluator takes one axis in every opset, which is wrong up to opset 12.
    check_vjp(op_type, [X], opset=opset, run=run_on_runtime if opset < 13 else None, **attributes)


@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("guard", ["IsNaN", "row"])
def test_a_row_that_is_masked_from_end_to_end(guard, cast):
    """Attention replaces such rows after the softmax, by IsNaN or by looking at the mask: their slope is 0, not NaN."""
    x = np.array([[1.0, 2.0, -np.inf], [-np.inf, -np.inf, -np.inf], [0.5, -1.0, 0.0]], np.float32)
    nodes = [helper.make_node("Softmax", ["x"], ["s"], axis=-1)]
    if cast:
        nodes.append(helper.make_node("Cast", ["s"], ["s2"], to=TensorProto.FLOAT))
    found = "s2" if cast else "s"
    if guard == "IsNaN":
        nodes.append(helper.make_node("IsNaN", [found], ["masked"]))
    else:
        nodes.append(helper.make_node("ReduceMax", ["x", "last"], ["largest"]))
        nodes.append(helper.make_node("IsInf", ["largest"], ["masked"]))
    nodes.append(helper.make_node("Where", ["masked", "zero", found], ["y"]))
    weights = [numpy_helper.from_array(np.float32(0), "zero"), numpy_helper.from_array(np.array([-1]), "last")]
    inputs, outputs = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 3])] for name in ("x", "y"))
    graph = helper.make_graph(nodes, "safe", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    dy = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)
    got = run_on_runtime(onward.gradient(model, wrt=["x"]), {"x": x, "y_grad": dy})["x_grad"]
    tensor = torch.tensor(x[[0, 2]], requires_grad=True)
    torch.softmax(tensor, -1).backward(torch.tensor(dy[[0, 2]]))
    np.testing.assert_allclose(got[[0, 2]], tensor.grad, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(got[1], 0)


def test_nan_is_not_hidden_elsewhere():
    value, output = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2]) for name in ("x", "y"))
    graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"])], "plain", [value], [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    assert "IsNaN" not in [node.op_type for node in onward.gradient(model, wrt=["x"]).graph.node]

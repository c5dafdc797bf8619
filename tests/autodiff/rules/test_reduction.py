"""Reductions: axes as attribute, constant or input."""

import numpy as np
import pytest
from onnx import TensorProto, helper

import onward
from onward.testing import check_vjp, run_on_runtime

RANDOM = np.random.default_rng(0)
SHAPE = (2, 3, 2)
ANY = RANDOM.permutation(np.linspace(-2, 2, 12)).reshape(SHAPE)  # no ties, nothing near 0
POSITIVE = RANDOM.uniform(0.5, 1.5, size=SHAPE)

OPERATORS = {
    "ReduceSum": ANY,
    "ReduceMean": ANY,
    "ReduceMax": ANY,
    "ReduceMin": ANY,
    "ReduceL1": ANY,
    "ReduceL2": ANY,
    "ReduceSumSquare": ANY,
    "ReduceLogSum": POSITIVE,
    "ReduceLogSumExp": ANY,
    "ReduceProd": POSITIVE,
}
ALL = pytest.mark.parametrize("op_type", OPERATORS)


def axes_are_inputs(op_type, opset):
    return opset >= (13 if op_type == "ReduceSum" else 18)


def check(op_type, axes, opset, *, constant=True, **attributes):
    x = OPERATORS[op_type]
    if axes is None:
        check_vjp(op_type, [x], opset=opset, **attributes)
    elif axes_are_inputs(op_type, opset):
        constants = [1] if constant else []
        check_vjp(op_type, [x, np.array(axes, np.int64)], opset=opset, constants=constants, **attributes)
    else:
        check_vjp(op_type, [x], opset=opset, axes=axes, **attributes)


@ALL
@pytest.mark.parametrize(("axes", "keepdims"), [(None, 0), (None, 1), ([1], 0), ([-1, 0], 1), ([0, 1, 2], 0)])
@pytest.mark.parametrize("opset", [12, 18])
def test_axes(op_type, axes, keepdims, opset):
    check(op_type, axes, opset, keepdims=keepdims)


@ALL
@pytest.mark.parametrize("opset", [13, 22])
def test_other_opsets(op_type, opset):
    check(op_type, [-2], opset, keepdims=0)


@ALL
@pytest.mark.parametrize(("axes", "keepdims"), [([1], 1), ([0, -1], 0)])
def test_axes_known_at_run_time(op_type, keepdims, axes):
    check(op_type, axes, 18, constant=False, keepdims=keepdims)


@ALL
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("constant", [True, False])
def test_empty_axes_mean_all(op_type, keepdims, constant):
    check(op_type, [], 18, constant=constant, keepdims=keepdims)


# Of the others the reference evaluator returns x itself, where the standard wants |x|, x^2 ...: see further below.
@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize(("axes", "constant"), [([], True), ([], False), (None, True), ([1], False)])
def test_noop_with_empty_axes(op_type, keepdims, axes, constant):
    check(op_type, axes, 18, constant=constant, keepdims=keepdims, noop_with_empty_axes=1)


def gradient_at(op_type, x, *, opset=13, **attributes):
    node = helper.make_node(op_type, ["x"], ["y"], keepdims=0, **attributes)
    info = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
    output = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(x.dtype), None)
    graph = helper.make_graph([node], "g", [info], [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    forward = run_on_runtime(model, {"x": x})["y"]
    feeds = {"x": x, "y_grad": np.ones_like(forward)}
    return run_on_runtime(onward.gradient(model, wrt=["x"]), feeds)["x_grad"]


@pytest.mark.parametrize(("op_type", "sign"), [("ReduceMax", 1), ("ReduceMin", -1)])
def test_ties_are_split_evenly(op_type, sign):
    x = sign * np.array([[1, 3, 3], [2, 2, 2], [5, 0, 1]], np.float32)
    wanted = [[0, 0.5, 0.5], [1 / 3, 1 / 3, 1 / 3], [1, 0, 0]]
    np.testing.assert_allclose(gradient_at(op_type, x, axes=[1]), wanted, rtol=1e-6)


def test_product_with_zeros():
    x = np.array([[2, 3, 4], [0, 3, 4], [0, 0, 4], [0, 0, 0]], np.float32)
    wanted = [[12, 8, 6], [12, 0, 0], [0, 0, 0], [0, 0, 0]]
    np.testing.assert_allclose(gradient_at("ReduceProd", x, axes=[1]), wanted, rtol=1e-6)


def test_norm_of_zeros_has_no_slope():
    x = np.array([[0, 0], [3, 4]], np.float32)
    np.testing.assert_allclose(gradient_at("ReduceL2", x, axes=[1]), [[0, 0], [0.6, 0.8]], rtol=1e-6)
    np.testing.assert_allclose(gradient_at("ReduceL1", x, axes=[1]), [[0, 0], [1, 1]])


def test_scalar_is_its_own_reduction():
    for op_type in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceProd"):
        assert gradient_at(op_type, np.array(3, np.float32)) == 1


def test_mean_of_more_elements_than_half_precision_counts():
    got = gradient_at("ReduceMean", np.ones(100_000, np.float16))
    np.testing.assert_allclose(got, 1e-5, rtol=1e-2)


def test_noop_applies_the_rest_of_the_reduction():
    """Without axes and with noop, squares are taken of each element alone, and so on."""
    x = np.array([1.0, -2.0], np.float32)
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    for op_type, slope in (("ReduceSumSquare", 2 * x), ("ReduceL1", np.sign(x)), ("ReduceL2", np.sign(x))):
        node = helper.make_node(op_type, ["x"], ["y"], noop_with_empty_axes=1)
        graph = helper.make_graph([node], "g", infos[:1], infos[1:])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        feeds = {"x": x, "y_grad": np.ones(2, np.float32)}
        np.testing.assert_allclose(run_on_runtime(onward.gradient(model, wrt=["x"]), feeds)["x_grad"], slope, rtol=1e-6)

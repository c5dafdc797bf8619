"""Dropout: its mask is random, so the gradient is compared with what the same run did to x."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import onward
from onward.testing import check_vjp, run_on_runtime

SHAPE = (40, 50)


def dropout_model(ratio, training, *, opset=13, mask=False, dims=SHAPE, dtype=TensorProto.FLOAT):
    """`ratio` and `training`: a value that is stored, "input" for one that is fed, or None for one left out."""
    names, infos, stored = ["x", "", ""], [helper.make_tensor_value_info("x", dtype, dims)], []
    element_types = {"ratio": (np.float32, TensorProto.FLOAT), "training": (np.bool_, TensorProto.BOOL)}
    for position, (name, value) in enumerate({"ratio": ratio, "training": training}.items(), start=1):
        if value is None:
            continue
        names[position] = name
        numpy_type, tensor_type = element_types[name]
        if value == "input":
            infos.append(helper.make_tensor_value_info(name, tensor_type, []))
        else:
            stored.append(numpy_helper.from_array(np.asarray(value, numpy_type), name))
    node = helper.make_node("Dropout", names, ["y", "mask"] if mask else ["y"], seed=7)
    outputs = [helper.make_tensor_value_info("y", dtype, dims)]
    outputs += [helper.make_tensor_value_info("mask", TensorProto.BOOL, dims)] if mask else []
    graph = helper.make_graph([node], "g", infos, outputs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def run(model, x, **feeds):
    """y, the slope y / x of each element, and the gradient for a cotangent that is different everywhere."""
    cotangent = np.random.default_rng(1).uniform(1, 2, size=x.shape).astype(x.dtype)
    results = run_on_runtime(onward.gradient(model, wrt=["x"], of="y"), {"x": x, "y_grad": cotangent, **feeds})
    return results["y"], results["y"] / x, results["x_grad"] / cotangent


@pytest.fixture
def x():
    return np.random.default_rng(0).uniform(1, 2, size=SHAPE).astype(np.float32)


@pytest.mark.parametrize("opset", [12, 13, 22])
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("ratio", [None, 0.0, 0.25, "input"])
@pytest.mark.parametrize("dims", [SHAPE, ["batch", "width"], [None, None]])
def test_training(x, opset, mask, ratio, dims):
    model = dropout_model(ratio, True, opset=opset, mask=mask, dims=dims)
    y, slope, gradient = run(model, x, ratio=np.array(0.3, np.float32))
    np.testing.assert_allclose(gradient, slope, rtol=1e-5)
    expected = {None: 0.5, "input": 0.3}.get(ratio, ratio)
    assert abs(np.mean(y == 0) - expected) < 0.05
    assert np.mean(slope) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("ratio", [None, 0.25, "input"])
def test_training_mode_is_an_input(x, ratio):
    model = dropout_model(ratio, "input")
    for training in (True, False):
        y, slope, gradient = run(model, x, ratio=np.array(0.3, np.float32), training=np.array(training))
        np.testing.assert_allclose(gradient, slope, rtol=1e-5)
        assert np.any(y == 0) == training


@pytest.mark.parametrize(("ratio", "training"), [(0.5, None), (0.5, False), (None, None), ("input", False)])
def test_inference_is_the_identity(x, ratio, training):
    model = onward.gradient(dropout_model(ratio, training), wrt=["x"], of="y")
    assert {node.op_type for node in model.graph.node} == {"Dropout", "Identity"}
    results = run_on_runtime(model, {"x": x, "y_grad": x, "ratio": np.array(0.5, np.float32)})
    np.testing.assert_array_equal(results["x_grad"], x)


@pytest.mark.parametrize("opset", [7, 10])
def test_old_opsets_are_the_identity(opset):
    check_vjp("Dropout", [np.ones((2, 3))], opset=opset, ratio=0.5, run=run_on_runtime)


def test_everything_dropped(x):
    # onnxruntime refuses a ratio of 1 in training mode, so only the graph is looked at: it must be buildable.
    model = onward.gradient(dropout_model(1.0, True), wrt=["x"], of="y")
    assert model.graph.output[-1].name == "x_grad"


def test_half_precision(x):
    model = dropout_model(0.25, True, dtype=TensorProto.FLOAT16)
    _, slope, gradient = run(model, x.astype(np.float16))
    np.testing.assert_allclose(gradient, slope, atol=2e-3)


def test_two_dropouts_have_their_own_masks(x):
    """The gradient uses the mask of its own node, also where another one looks the same."""
    model = dropout_model(0.5, True)
    del model.graph.node[0].attribute[:]
    second = helper.make_node("Dropout", ["y", "ratio", "training"], ["z"])
    model.graph.node.append(second)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("z", TensorProto.FLOAT, SHAPE))
    cotangent = np.ones_like(x)
    results = run_on_runtime(onward.gradient(model, wrt=["x"], of="z"), {"x": x, "z_grad": cotangent})
    np.testing.assert_allclose(results["x_grad"], results["z"] / x, rtol=1e-5)
    assert np.mean(results["z"] == 0) == pytest.approx(0.75, abs=0.05)

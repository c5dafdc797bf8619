"""Slice and Pad."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onward
from onward.testing import check_vjp, run_on_runtime

END, BEGINNING = np.iinfo(np.int64).max, np.iinfo(np.int64).min


def array(*shape):
    return np.random.default_rng(0).normal(size=shape)


def ints(*values):
    return np.array(values, np.int64)


X = array(3, 4, 3)

SLICES = [
    # starts, ends, axes, steps
    ([0, 1], [2, 4], None, None),
    ([1], [3], [1], None),
    ([1], [END], [-1], None),
    ([-3], [-1], [1], None),
    ([-100], [100], [1], None),
    ([3], [2], [1], None),
    ([0], [END], [1], [2]),
    ([1], [END], [1], [2]),
    ([1, 0], [END, 4], [1, 2], [3, 2]),
    ([0, 1], [2, END], [0, 2], [1, 3]),
    ([-1], [BEGINNING], [1], [-1]),
    ([END], [BEGINNING], [1], [-2]),
    ([3, -1], [0, -4], [1, 2], [-2, -1]),
    ([-2, 2], [-100, 100], [1, 0], [-1, 1]),
]


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "computed"])
@pytest.mark.parametrize(("starts", "ends", "axes", "steps"), SLICES)
def test_slice(starts, ends, axes, steps, constant):
    inputs = [X, *(None if values is None else ints(*values) for values in (starts, ends, axes, steps))]
    check_vjp("Slice", inputs, opset=13, constants=[1, 2, 3, 4] if constant else [])


@pytest.mark.parametrize(("starts", "ends", "axes", "steps"), [SLICES[0], SLICES[3], SLICES[6], SLICES[12]])
def test_slice_with_computed_bounds_and_known_axes(starts, ends, axes, steps):
    inputs = [X, *(None if values is None else ints(*values) for values in (starts, ends, axes, steps))]
    check_vjp("Slice", inputs, opset=13, constants=[3, 4])


def test_slice_of_a_start_behind_the_end():
    check_vjp("Slice", [X, ints(7), ints(9), ints(1)], opset=13, constants=[1, 2, 3])


@pytest.mark.parametrize(
    "attributes", [{"starts": [1, 0], "ends": [3, -1]}, {"starts": [-2], "ends": [END], "axes": [2]}]
)
def test_slice_with_attributes(attributes):
    check_vjp("Slice", [X], opset=9, **attributes)


def model_of(node, inputs, opset=13, constants=()):
    """A model of one node; dims are symbolic on the first axis."""
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), ["n", *value.shape[1:]])
        for name, value in inputs.items()
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "model", values, [y], list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def test_a_known_slice_becomes_one_pad():
    """Although the batch size is not known."""
    constants = [
        helper.make_tensor(name, TensorProto.INT64, [1], [value]) for name, value in [("s", 1), ("e", 3), ("a", 1)]
    ]
    node = helper.make_node("Slice", ["x", "s", "e", "a"], ["y"])
    model = onward.gradient(model_of(node, {"x": X.astype(np.float32)}, constants=constants), wrt=["x"])
    assert [node.op_type for node in model.graph.node] == ["Slice", "Pad"]


def test_a_slice_that_takes_all_of_an_axis_costs_nothing():
    """Whatever the size of that axis is: programs write x[:, 1:3] as two of them."""
    values = {"s": [0, 1], "e": [END, 3], "a": [0, 1]}
    constants = [helper.make_tensor(name, TensorProto.INT64, [2], value) for name, value in values.items()]
    node = helper.make_node("Slice", ["x", "s", "e", "a"], ["y"])
    model = onward.gradient(model_of(node, {"x": X.astype(np.float32)}, constants=constants), wrt=["x"])
    assert [node.op_type for node in model.graph.node] == ["Slice", "Pad"]


PADS = [
    # pads, axes
    ([0, 1, 2, 0, 0, 3], None),
    ([0, 0, 0, 0, 0, 0], None),
    ([0, -1, 2, 0, -2, -1], None),
    ([1, 0, 0, 2], [-1, 0]),
    ([-1, 1, 1, -1], [1, 2]),
]


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "computed"])
@pytest.mark.parametrize("value", [None, np.array(0.5), np.array([-1.5])], ids=["no value", "scalar", "vector"])
@pytest.mark.parametrize(("pads", "axes"), PADS)
def test_pad_with_a_constant(pads, axes, value, constant):
    inputs = [X, ints(*pads), value, *([] if axes is None else [ints(*axes)])]
    check_vjp("Pad", inputs, opset=13 if axes is None else 18, constants=[1, 3] if constant else [])


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "computed"])
@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize(
    ("pads", "axes"),
    [
        ([0, 1, 2, 0, 3, 0], None),
        ([2, 0, 0, 2, 3, 2], None),
        ([0, -1, 1, 0, 1, -1], None),
        ([1, 2, 0, 3], [-1, 1]),
        ([0, 0, 0, 0, 0, 0], None),
    ],
)
def test_pad_with_copies(pads, axes, mode, constant):
    inputs = [X, ints(*pads), *([] if axes is None else [None, ints(*axes)])]
    check_vjp("Pad", inputs, opset=19, constants=[1, 3] if constant else [], mode=mode)


def test_wrap_around_more_than_once():
    check_vjp("Pad", [array(2, 3), ints(0, 7, 0, 4)], opset=19, constants=[1], mode="wrap")


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_pad_with_attributes(mode):
    check_vjp("Pad", [X], opset=10, mode=mode, pads=[0, 1, 2, 0, 3, 0], value=0.5)


@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_pad_of_float16(mode):
    """onnxruntime cannot add float16 by index; small integers are exact in it."""
    x = np.arange(12, dtype=np.float16).reshape(3, 4)
    pads = helper.make_tensor("pads", TensorProto.INT64, [4], [0, 1, 0, 2])
    node = helper.make_node("Pad", ["x", "pads"], ["y"], mode=mode)
    model = model_of(node, {"x": x}, opset=18, constants=[pads])
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    dy = np.arange(21, dtype=np.float16).reshape(3, 7)
    dx = run_on_runtime(onward.gradient(model, wrt=["x"]), {"x": x, "y_grad": dy})["x_grad"]
    expected = dy[:, 1:5].copy()
    if mode == "reflect":
        expected[:, 1] += dy[:, 0] + dy[:, 6]
        expected[:, 2] += dy[:, 5]
    assert dx.dtype == np.float16
    np.testing.assert_array_equal(dx, expected)


def test_the_gradient_of_a_pad_is_a_slice():
    pads = helper.make_tensor("pads", TensorProto.INT64, [6], [0, 1, 1, 0, 0, 2])
    model = model_of(helper.make_node("Pad", ["x", "pads"], ["y"]), {"x": X.astype(np.float32)}, constants=[pads])
    differentiated = onward.gradient(model, wrt=["x"])
    assert isinstance(differentiated, onnx.ModelProto)
    assert [node.op_type for node in differentiated.graph.node] == ["Pad", "Slice"]

"""Operators that only move elements."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from onward.testing import check_gradient, check_vjp


def array(*shape):
    return np.random.default_rng(0).normal(size=shape)


def ints(*values):
    return np.array(values, np.int64)


X = array(2, 3, 4)


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(
    ("opset", "shape", "attributes"),
    [
        (13, ints(4, 6), {}),
        (13, ints(0, -1), {}),
        (18, ints(-1), {}),
        (18, ints(2, 3, 4), {}),
        (18, ints(3, 2, 0, 1), {}),
        (19, ints(6, 4), {"allowzero": 1}),
        (7, ints(-1, 2), {}),
    ],
)
def test_reshape(opset, shape, attributes, constant):
    x = array(3, 2, 4) if 0 in shape[1:] else X
    check_vjp("Reshape", [x, shape], opset=opset, constants=[1] if constant else [], **attributes)


def test_reshape_of_nothing():
    check_vjp("Reshape", [array(2, 0, 3), ints(0, 5)], constants=[1], opset=18, allowzero=1)


@pytest.mark.parametrize("axis", [None, 0, 2, 3, -1])
def test_flatten(axis):
    check_vjp("Flatten", [X], opset=13, **({} if axis is None else {"axis": axis}))


@pytest.mark.parametrize(
    ("op_type", "opset", "x", "axes", "attributes"),
    [
        ("Squeeze", 11, array(2, 1, 3, 1), None, {"axes": [1, -1]}),
        ("Squeeze", 11, array(2, 1, 3, 1), None, {"axes": [3]}),
        ("Squeeze", 9, array(2, 1, 3), None, {"axes": [1]}),
        ("Squeeze", 13, array(2, 1, 3, 1), ints(-3), {}),
        ("Squeeze", 18, array(2, 1, 3, 1), ints(1, 3), {}),
        ("Unsqueeze", 11, X, None, {"axes": [0, -1]}),
        ("Unsqueeze", 9, X, None, {"axes": [1]}),
        ("Unsqueeze", 13, X, ints(-1, 2), {}),
        ("Unsqueeze", 18, array(), ints(0), {}),
    ],
)
def test_squeeze_and_unsqueeze(op_type, opset, x, axes, attributes):
    inputs = [x] if axes is None else [x, axes]
    check_vjp(op_type, inputs, opset=opset, constants=[1] if axes is not None else [], **attributes)


def test_squeeze_without_axes():
    # The rank of the result is not inferred where dimensions are unknown.
    check_vjp("Squeeze", [array(2, 1, 3, 1)], opset=13)


@pytest.mark.parametrize("perm", [None, [2, 0, 1], [0, 2, 1], [0, 1, 2]])
def test_transpose(perm):
    check_vjp("Transpose", [X], opset=13, **({} if perm is None else {"perm": perm}))


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(
    ("x", "shape"),
    [
        (array(3, 1), ints(2, 3, 4)),
        (array(1, 3), ints(2, 1)),
        (array(3), ints(1)),
        (array(), ints(2, 2)),
        (array(1, 2, 1), ints(3, 1, 2)),
    ],
)
def test_expand(x, shape, constant):
    check_vjp("Expand", [x, shape], opset=13, constants=[1] if constant else [])


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(
    ("x", "repeats"), [(X, ints(1, 2, 3)), (X, ints(1, 1, 1)), (array(3), ints(2)), (X, ints(2, 1, 1))]
)
def test_tile(x, repeats, constant):
    check_vjp("Tile", [x, repeats], opset=13, constants=[1] if constant else [])


@pytest.mark.parametrize(
    ("shapes", "axis"),
    [([(2, 3)], 0), ([(2, 3), (2, 1), (2, 2)], 1), ([(2, 3), (1, 3)], -2), ([(2,), (3,)], 0), ([(2, 0), (2, 3)], 1)],
)
@pytest.mark.parametrize("opset", [12, 13])  # sizes are an attribute of Split, then an input
def test_concat(shapes, axis, opset):
    inputs = [np.random.default_rng(index).normal(size=shape) for index, shape in enumerate(shapes)]
    check_vjp("Concat", inputs, opset=opset, axis=axis)


@pytest.mark.parametrize(
    ("opset", "inputs", "outputs", "attributes"),
    [
        (11, [array(2, 6)], 3, {"axis": 1}),
        (11, [array(2, 6)], 2, {"axis": -1, "split": [4, 2]}),
        (13, [array(6, 2)], 2, {}),
        (13, [array(6, 2), ints(1, 5)], 2, {"axis": 0}),
        (18, [array(2, 7)], 3, {"axis": -1, "num_outputs": 3}),
        (18, [array(4, 2), ints(4)], 1, {}),
    ],
)
def test_split(opset, inputs, outputs, attributes):
    check_vjp("Split", inputs, opset=opset, outputs=outputs, constants=[1], **attributes)


@pytest.mark.parametrize("used", [[0], [1], [0, 2]])
def test_split_with_unused_outputs(used):
    check_vjp("Split", [array(2, 6)], opset=13, outputs=3, of=used, axis=1)


@pytest.mark.parametrize(
    ("op_type", "opset", "x", "attributes"),
    [
        ("DepthToSpace", 1, array(1, 8, 2, 3), {"blocksize": 2}),
        ("DepthToSpace", 11, array(1, 8, 2, 3), {"blocksize": 2, "mode": "DCR"}),
        ("DepthToSpace", 13, array(2, 8, 2, 1), {"blocksize": 2, "mode": "CRD"}),
        ("SpaceToDepth", 13, array(1, 2, 4, 2), {"blocksize": 2}),
    ],
)
def test_depth_and_space(op_type, opset, x, attributes):
    check_vjp(op_type, [x], opset=max(opset, 9), **attributes)


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [None, 0, 1, -1])
@pytest.mark.parametrize("constant", [True, False])
def test_trilu(upper, k, constant):
    inputs = [array(2, 3, 4)] if k is None else [array(2, 3, 4), np.array(k, np.int64)]
    check_vjp("Trilu", inputs, opset=14, constants=[1] if constant else [], upper=upper)


@pytest.mark.parametrize(("time_axis", "batch_axis", "lengths"), [(0, 1, ints(2, 0, 4)), (1, 0, ints(3, 1, 2, 0))])
def test_reverse_sequence(time_axis, batch_axis, lengths):
    check_vjp("ReverseSequence", [array(4, 3, 2), lengths], opset=10, time_axis=time_axis, batch_axis=batch_axis)


@pytest.mark.parametrize(
    ("shape", "attributes"), [(ints(5, 2, 3), {}), (ints(1, 6), {"axes": [0, -1]}), (ints(4), {"axes": [1]})]
)
def test_center_crop_pad_by_expansion(shape, attributes):
    check_vjp("CenterCropPad", [X, shape], opset=18, constants=[1], **attributes)


def test_a_chain_of_movements():
    """Values between rules: the cotangent of one is the input of the next."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node("Reshape", ["t", "shape"], ["r"]),
        helper.make_node("Split", ["r"], ["a", "b"], axis=1),
        helper.make_node("Concat", ["b", "a", "b"], ["c"], axis=0),
        helper.make_node("Mul", ["c", "c"], ["y"]),
    ]
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [0, -1])
    x = helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["n", 3, 4])
    y = helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)
    graph = helper.make_graph(nodes, "chain", [x], [y], [shape])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    check_gradient(model, {"x": X}, wrt=["x"])

"""Operators that select by index."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import onward
from onward.testing import check_gradient, check_vjp, run_on_runtime


def array(*shape):
    return np.random.default_rng(0).normal(size=shape)


def ints(*values):
    return np.array(values, np.int64)


X = array(3, 3, 4)


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "computed"])
@pytest.mark.parametrize(
    ("indices", "axis"),
    [
        (ints(0, 2, 2, -1), 0),
        (ints(1, 2), 0),
        (ints(-2, -1), 2),
        (ints(-1, 0), 2),
        (ints(3, 0), 2),
        (ints(2, 0, 1), 1),
        (np.array(1), 1),
        (np.array(-1), -2),
        (np.array([[0, 1], [1, -1]]), 0),
        (np.array([[0, 1], [2, 3]]), -1),
        (np.array([[[3]]], np.int32), 2),
        (np.zeros((0,), np.int64), 1),
    ],
)
def test_gather(indices, axis, constant):
    check_vjp("Gather", [X, indices], opset=13, constants=[1] if constant else [], axis=axis)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_gather_from_a_table(dtype):
    table, indices = array(3, 2), np.array([[0, 1, -1], [2, 1, 1]], dtype)
    check_vjp("Gather", [table, indices], opset=13, wrt=[0])


@pytest.mark.parametrize("opset", [9, 12, 15])
def test_gather_in_an_old_opset(opset):
    check_vjp("Gather", [X, ints(0, 2, 2)], opset=opset, axis=1)


def gather_model(table, indices, dtype=TensorProto.FLOAT, constants=()):
    rows = helper.make_tensor_value_info("table", dtype, table.shape)
    index = helper.make_tensor_value_info("indices", TensorProto.INT64, indices.shape)
    y = helper.make_tensor_value_info("y", dtype, None)
    node = helper.make_node("Gather", ["table", "indices"], ["y"])
    inputs = [rows] if "indices" in constants else [rows, index]
    weights = [numpy_helper.from_array(indices, "indices")] if "indices" in constants else []
    graph = helper.make_graph([node], "lookup", inputs, [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def test_no_update_of_an_embedding_gets_lost():
    """Many indices into few rows: onnxruntime's ScatterND adds in parallel without locking and would drop some."""
    rows = 16
    table, indices = np.zeros((rows, 64), np.float32), np.arange(20_000) % 7
    dy = np.ones((20_000, 64), np.float32)
    model = onward.gradient(gather_model(table, indices), wrt=["table"])
    got = run_on_runtime(model, {"table": table, "indices": indices, "y_grad": dy})["table_grad"]
    expected = np.repeat(np.bincount(indices, minlength=rows)[:, None], 64, axis=1)
    np.testing.assert_array_equal(got, expected)


def test_embedding_in_float16():
    """Summed in float32: in float16 no more than 2048 ones can be counted."""
    table, indices = np.zeros((16, 2), np.float16), np.zeros(3000, np.int64)
    model = onward.gradient(gather_model(table, indices, TensorProto.FLOAT16), wrt=["table"])
    feeds = {"table": table, "indices": indices, "y_grad": np.ones((3000, 2), np.float16)}
    got = run_on_runtime(model, feeds)["table_grad"]
    assert got.dtype == np.float16
    assert got[0].tolist() == [3000, 3000]
    assert not got[1:].any()


@pytest.mark.parametrize(
    ("indices", "backward"),
    [(ints(3), ["Pad"]), (np.array(3), ["Unsqueeze", "Pad"]), (ints(2, 3), ["Pad"])],
)
def test_known_indices_that_count_up_need_no_scatter(indices, backward):
    model = gather_model(np.zeros((5, 2)), indices, constants=["indices"])
    differentiated = onward.gradient(model, wrt=["table"])
    assert [node.op_type for node in differentiated.graph.node] == ["Gather", *backward]


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
@pytest.mark.parametrize("constant", [True, False], ids=["constant", "computed"])
def test_gather_elements(axis, constant):
    indices = np.array([[0, 2, -1], [2, 2, 1]])
    # The reference evaluator takes neither negative axes nor indices that leave out the end of another axis.
    run, known = run_on_runtime, [1] if constant else []
    check_vjp("GatherElements", [array(3, 4), indices], opset=13, constants=known, run=run, axis=axis)


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "computed"])
@pytest.mark.parametrize(
    ("indices", "batch_dims"),
    [
        (np.array([[0], [2], [0]]), 0),
        (np.array([[0], [2]]), 0),
        (np.array([[0, 1], [-1, 2], [2, 2]]), 0),
        (np.array([[[0, 1, 1]], [[-1, 2, 0]]]), 0),
        (np.array([[0, 1, 1], [0, -2, 1]]), 0),
        (ints(1, 2), 0),
        (np.array([[1], [0], [-1]]), 1),
        (np.array([[[1, 1], [1, 1]], [[0, 0], [1, 2]], [[0, -1], [0, 3]]]), 1),
        (np.array([[[1], [0], [3]]] * 3), 2),
    ],
)
def test_gather_nd(indices, batch_dims, constant):
    check_vjp("GatherND", [X, indices], opset=13, constants=[1] if constant else [], batch_dims=batch_dims)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("constant", [True, False], ids=["constant", "computed"])
@pytest.mark.parametrize("attributes", [{}, {"axis": 0}, {"axis": 1, "largest": 0}, {"axis": -1, "sorted": 0}])
def test_topk(k, attributes, constant):
    # Without sorting, the order is the implementation's own.
    run = run_on_runtime if "sorted" in attributes else None
    known = [1] if constant else []
    check_vjp("TopK", [X, ints(k)], opset=11, outputs=2, of=[0], constants=known, run=run, **attributes)


def test_topk_of_opset_9():
    # The reference evaluator has no TopK with k as an attribute.
    check_vjp("TopK", [X], opset=9, outputs=2, of=[0], k=2, run=run_on_runtime, dtype=np.float32, tolerance=1e-3)


@pytest.mark.parametrize(
    ("condition", "attributes"),
    [
        ([True, False, True], {"axis": 0}),
        ([False, True], {"axis": -1}),
        ([False, True, True], {"axis": 1}),
        ([False] * 7 + [True, False, True], {}),
    ],
)
def test_compress(condition, attributes):
    check_vjp("Compress", [X, np.array(condition)], opset=11, **attributes)


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot_values(axis):
    inputs = [np.array([[0, 2], [-1, 3]]), np.array(4), array(2)]
    check_vjp("OneHot", inputs, opset=11, axis=axis)


def test_lookups_that_feed_each_other():
    """The rows that one lookup finds are searched by the next, and both scatter into the same table."""
    nodes = [
        helper.make_node("Gather", ["table", "i"], ["rows"], axis=0),
        helper.make_node("GatherND", ["rows", "j"], ["picked"], batch_dims=1),
        helper.make_node("TopK", ["picked", "k"], ["top", "places"], axis=0),
        helper.make_node("ScatterND", ["table", "l", "top"], ["changed"], reduction="add"),
        helper.make_node("Mul", ["changed", "changed"], ["y"]),
    ]
    weights = {
        "i": np.array([[0, 1, 1], [2, 0, 1]]),
        "j": np.array([[1], [0]]),
        "k": ints(1),
        "l": np.array([[1]]),
    }
    table = helper.make_tensor_value_info("table", TensorProto.DOUBLE, ["rows", 4])
    y = helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)
    initializers = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "lookups", [table], [y], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
    check_gradient(model, {"table": array(3, 4)}, wrt=["table"])


@pytest.mark.parametrize("sort", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_unique(sort, axis):
    """Elements that are all different: sorting them is all that happens.

    In float64 on onnxruntime; the reference evaluator's inverse indices are those of sorted elements.
    """
    attributes = {"sorted": sort} if axis is None else {"sorted": sort, "axis": axis}
    check_vjp("Unique", [array(3, 4)], opset=11, of=[0], run=run_on_runtime, **attributes)


@pytest.mark.parametrize(
    ("attributes", "dy", "expected"),
    [
        ({"sorted": 0}, [6, 8, 4, 2], [[6, 4, 4], [2, 2, 2]]),
        ({}, [8, 6, 2, 4], [[6, 4, 4], [1, 4, 1]]),
    ],
)
def test_equal_elements_share_the_cotangent_of_their_value(attributes, dy, expected):
    x = np.array([[2, 1, 1], [3, 4, 3]], np.float32)
    value, output = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y"))
    value.type.tensor_type.shape.CopyFrom(helper.make_tensor_value_info("x", 1, ["N", "M"]).type.tensor_type.shape)
    graph = helper.make_graph([helper.make_node("Unique", ["x"], ["y"], **attributes)], "unique", [value], [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    got = run_on_runtime(onward.gradient(model, wrt=["x"]), {"x": x, "y_grad": np.array(dy, np.float32)})["x_grad"]
    np.testing.assert_allclose(got, expected)


def test_equal_slices_share_the_cotangent_of_their_one():
    x = np.array([[1, 0], [1, 0], [2, 3]], np.float32)
    value, output = helper.make_tensor_value_info("x", 1, x.shape), helper.make_tensor_value_info("y", 1, None)
    graph = helper.make_graph([helper.make_node("Unique", ["x"], ["y"], axis=0)], "unique", [value], [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    dy = np.array([[2, 4], [5, 6]], np.float32)
    got = run_on_runtime(onward.gradient(model, wrt=["x"]), {"x": x, "y_grad": dy})["x_grad"]
    np.testing.assert_allclose(got, [[1, 2], [1, 2], [5, 6]])

"""Lowered graphs compute what the graphs before did."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from onward.graph.builder import Builder
from onward.graph.finish import finish
from onward.graph.prepare import prepare
from onward.testing import run_on_runtime
from onward.training.lowering import lower

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
CLASSES = 1024  # fewer stay as they are
X = np.random.default_rng(0).normal(size=(6, CLASSES)).astype(np.float32) * 20
LABELS = np.array([0, 1023, 2, 2, 1, 3])


def loss_model(outputs, *, weights=False, shape=("N", CLASSES), labels=("N",), **attributes):
    inputs = ["x", "labels", *(["weights"] if weights else [])]
    node = helper.make_node("SoftmaxCrossEntropyLoss", inputs, outputs, "criterion", **attributes)
    # Something that reads the outputs, so that not all of them are outputs of the graph only.
    extra = helper.make_node("Neg", [outputs[-1]], ["negative"])
    graph = helper.make_graph(
        [node, extra],
        "loss",
        [helper.make_tensor_value_info("x", FLOAT, shape), helper.make_tensor_value_info("labels", INT64, labels)],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in (*outputs, "negative")],
        [numpy_helper.from_array(np.linspace(0.5, 2, CLASSES, dtype=np.float32), "weights")] if weights else [],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


def lowered(model: onnx.ModelProto) -> onnx.ModelProto:
    graph: ir.Model = prepare(model)
    lower(Builder(graph.graph, graph.opset_imports[""]))
    result = finish(graph)
    onnx.checker.check_model(result, full_check=True)
    return result


@pytest.mark.parametrize("outputs", [["loss"], ["loss", "log_prob"]])
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("attributes", [{}, {"reduction": "sum"}, {"reduction": "none", "ignore_index": 2}])
def test_softmax_cross_entropy(outputs, weights, attributes):
    model = loss_model(outputs, weights=weights, **attributes)
    result = lowered(model)
    assert "SoftmaxCrossEntropyLoss" not in {node.op_type for node in result.graph.node}
    assert [value.name for value in result.graph.output] == [*outputs, "negative"]
    feeds = {"x": X, "labels": LABELS}
    expected, got = run_on_runtime(model, feeds), run_on_runtime(result, feeds)
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-6, atol=1e-6)


def test_losses_of_higher_rank_stay():
    model = loss_model(["loss"], shape=("N", CLASSES, 3), labels=("N", 3))
    assert [node.op_type for node in lowered(model).graph.node] == ["SoftmaxCrossEntropyLoss", "Neg"]


def test_losses_of_few_classes_stay():
    model = loss_model(["loss"], shape=("N", 10))
    assert [node.op_type for node in lowered(model).graph.node] == ["SoftmaxCrossEntropyLoss", "Neg"]


def masked_model(operator="Relu", other=0.0, elem_type=FLOAT):
    """What the gradient of Relu looks like: dy where y is not 0."""
    dtype = helper.tensor_dtype_to_np_dtype(elem_type)
    graph = helper.make_graph(
        [
            helper.make_node(operator, ["x"], ["y"], "forward"),
            helper.make_node("Cast", ["y"], ["mask"], "mask", to=TensorProto.BOOL),
            helper.make_node("Where", ["mask", "dy", "other"], ["dx"], "backward"),
        ],
        "masked",
        [helper.make_tensor_value_info(name, elem_type, ["N", CLASSES]) for name in ("x", "dy")],
        [helper.make_tensor_value_info("dx", elem_type, None)],
        [numpy_helper.from_array(np.array(other, dtype), "other")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


def test_masks():
    model = masked_model()
    result = lowered(model)
    assert [node.op_type for node in result.graph.node] == ["Relu", "Cast", "Cast", "Mul"]
    feeds = {"x": X, "dy": X[::-1].copy()}
    np.testing.assert_array_equal(run_on_runtime(result, feeds)["dx"], run_on_runtime(model, feeds)["dx"])


@pytest.mark.parametrize(
    "model",
    [masked_model(other=1.0), masked_model(elem_type=TensorProto.DOUBLE), masked_model("IsNaN")],
    ids=["one", "double", "guard"],
)
def test_masks_that_stay(model):
    assert [node.op_type for node in lowered(model).graph.node][-1] == "Where"


def test_masks_of_the_users_model_stay():
    """They may keep infinities out."""
    model = prepare(masked_model())
    lower(Builder(model.graph, model.opset_imports[""]), forward=set(model.graph))
    assert [node.op_type for node in model.graph][-1] == "Where"

"""SoftmaxCrossEntropyLoss and NegativeLogLikelihoodLoss."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import onward
from onward.testing import check_vjp, run_on_runtime

LOSSES = ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"]
SHAPES = [(5, 3), (2, 3, 4), (2, 3, 2, 2), (1, 3, 2, 1, 2)]


def scores_and_labels(shape, dtype=np.int64, ignored=None):
    random = np.random.default_rng(0)
    labels = random.integers(0, shape[1], size=(shape[0], *shape[2:])).astype(dtype)
    if ignored is not None:
        labels.flat[1] = ignored
    return random.normal(size=shape), labels


def weights(classes):
    return np.random.default_rng(1).uniform(0.5, 2.0, size=classes)


@pytest.mark.parametrize("op_type", LOSSES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_loss(op_type, shape, reduction):
    check_vjp(op_type, [*scores_and_labels(shape)], reduction=reduction)


@pytest.mark.parametrize("op_type", LOSSES)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("ignored", [None, 0, -100, 255])
@pytest.mark.parametrize("weighted", [False, True])
def test_weights_and_ignored_labels(op_type, reduction, ignored, weighted):
    """The weights have a derivative too."""
    scores, labels = scores_and_labels((2, 3, 4), ignored=ignored)
    inputs = [scores, labels] + ([weights(3)] if weighted else [])
    attributes = {} if ignored is None else {"ignore_index": ignored}
    check_vjp(op_type, inputs, reduction=reduction, **attributes)


@pytest.mark.parametrize("op_type", LOSSES)
@pytest.mark.parametrize("opset", [12, 13, 22])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_opsets_and_label_types(op_type, opset, dtype):
    scores, labels = scores_and_labels((5, 3), dtype, ignored=-1)
    check_vjp(op_type, [scores, labels, weights(3)], opset=opset, ignore_index=-1)


@pytest.mark.parametrize("of", [[0], [1], [0, 1]])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_log_prob(of, reduction):
    scores, labels = scores_and_labels((2, 3, 2), ignored=2)
    check_vjp("SoftmaxCrossEntropyLoss", [scores, labels], outputs=2, of=of, reduction=reduction, ignore_index=2)


def loss_model(op_type, shape, **attributes):
    infos = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
        helper.make_tensor_value_info("labels", TensorProto.INT64, [shape[0], *shape[2:]]),
    ]
    node = helper.make_node(op_type, ["x", "labels"], ["loss"], **attributes)
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def test_agrees_with_torch():
    """The oracle of the differences shares its reading of the standard with the rule; torch does not."""
    scores, labels = scores_and_labels((6, 5), ignored=-100)
    model = onward.gradient(loss_model("SoftmaxCrossEntropyLoss", scores.shape, ignore_index=-100), wrt=["x"])
    got = run_on_runtime(model, {"x": scores.astype(np.float32), "labels": labels})
    x = torch.tensor(scores, dtype=torch.float32, requires_grad=True)
    torch.nn.functional.cross_entropy(x, torch.tensor(labels)).backward()
    np.testing.assert_allclose(got["x_grad"], x.grad, atol=1e-6)


def test_all_labels_ignored_have_no_slope():
    """The mean of no rows is not a number, but its gradient is 0, as in torch."""
    model = onward.gradient(loss_model("SoftmaxCrossEntropyLoss", (2, 3), ignore_index=-100), wrt=["x"])
    got = run_on_runtime(model, {"x": np.ones((2, 3), np.float32), "labels": np.full(2, -100)})
    assert np.all(got["x_grad"] == 0)


def test_common_case_is_lean():
    """Class scores, mean: nothing as large as the scores but Exp, one scatter and one product."""
    model = onward.gradient(loss_model("SoftmaxCrossEntropyLoss", (4, 7)), wrt=["x"])
    inferred = onnx.shape_inference.infer_shapes(model)
    large = {
        value.name
        for value in (*inferred.graph.value_info, *inferred.graph.output)
        if [dim.dim_value for dim in value.type.tensor_type.shape.dim] == [4, 7]
    }
    made = [node.op_type for node in model.graph.node if set(node.output) & large]
    assert made == ["SoftmaxCrossEntropyLoss", "Exp", "ScatterElements", "Mul"]

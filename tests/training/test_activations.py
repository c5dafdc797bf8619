"""A loss that takes logits warns when it is given what a Softmax or Sigmoid made of them, and only then."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onward
from onward import artifacts, losses, onnxblock
from onward.errors import LossWarning
from onward.onnxblock import loss as block_losses


def classifier(*activations: str) -> onnx.ModelProto:
    names = ["logits", *(f"{kind.lower()}_out" for kind in activations)]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["logits"])]
    for kind, before, after in zip(activations, names, names[1:], strict=False):
        nodes.append(helper.make_node(kind, [before], [after], f"the_{kind}"))
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info(names[-1], TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(np.eye(4, 3, dtype=np.float32), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def own(op, prediction, target):
    return losses.bce_with_logits(op, prediction, target)


WRONG = [
    (["Softmax"], losses.cross_entropy),
    (["Softmax"], losses.focal),
    (["Softmax"], losses.soft_cross_entropy),
    (["Softmax", "Identity"], losses.cross_entropy),
    (["Softmax"], losses.nll),
    (["Softmax"], losses.kl_div),
    (["Sigmoid"], losses.bce_with_logits),
    (["Sigmoid"], losses.binary_focal),
    (["Sigmoid"], own),
]
RIGHT = [
    ([], losses.cross_entropy),
    (["LogSoftmax"], losses.nll),
    (["LogSoftmax"], losses.cross_entropy),  # of logarithms that are normalised already it is the same
    (["Softmax", "Log"], losses.nll),
    (["Sigmoid"], losses.bce),
    (["Softmax"], losses.mse),
    (["Softmax", "Relu"], losses.cross_entropy),
]


@pytest.mark.parametrize(("activations", "loss"), WRONG)
def test_wrong(activations, loss, tmp_path):
    model = classifier(*activations)
    said = rf"{activations[0]} node '?the_{activations[0]}.*loss_input_names=\['logits'\]"
    with pytest.warns(LossWarning, match=said):
        onward.training_step(model, loss)
    with pytest.warns(LossWarning, match=said):
        artifacts.generate_artifacts(model, loss=loss, artifact_directory=tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        artifacts.generate_artifacts(model, loss=loss, artifact_directory=tmp_path, loss_input_names=["logits"])


@pytest.mark.parametrize(("activations", "loss"), RIGHT)
def test_right(activations, loss, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        onward.training_step(classifier(*activations), loss)
        artifacts.generate_artifacts(classifier(*activations), loss=loss, artifact_directory=tmp_path)


def test_blocks():
    with onnxblock.base(classifier("Softmax")), pytest.warns(LossWarning, match="cross_entropy takes logits"):
        block_losses.CrossEntropyLoss()("softmax_out")


def with_own_loss() -> onnx.ModelProto:
    model = classifier("Softmax")
    model.graph.node.append(helper.make_node("SoftmaxCrossEntropyLoss", ["softmax_out", "labels"], ["loss"]))
    model.graph.input.append(helper.make_tensor_value_info("labels", TensorProto.INT64, ["N"]))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("loss", TensorProto.FLOAT, []))
    return model


def test_a_loss_of_the_model_itself(tmp_path):
    with pytest.warns(LossWarning, match="SoftmaxCrossEntropyLoss takes logits"):
        onward.training_step(with_own_loss(), None)
    with pytest.warns(LossWarning, match="SoftmaxCrossEntropyLoss takes logits"):
        artifacts.generate_artifacts(with_own_loss(), artifact_directory=tmp_path)
    assert any("SoftmaxCrossEntropyLoss takes logits" in note for note in onward.check(with_own_loss()).notes)

"""A label that is no class gives an error, in every loss and every graph, and never a number."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import onward
from onward import losses
from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.graph.finish import finish
from onward.graph.prepare import prepare
from onward.testing import loss_model
from onward.training.loss import attach_loss
from onward.training.split import split
from tests.api import toys

CLASSES = 5
REFUSED = r"(?i)out of|bounds|range"
WRONG = [-1, -CLASSES, -CLASSES - 1, CLASSES, 1000, -(2**40)]
WEIGHT = [0.5, 1.0, 2.0, 1.0, 1.5]
LOSSES = {
    "cross_entropy": losses.cross_entropy,
    "weight": functools.partial(losses.cross_entropy, weight=WEIGHT),
    "sum": functools.partial(losses.cross_entropy, reduction="sum"),
    "ignore": functools.partial(losses.cross_entropy, ignore_index=-100),
    "ignore a class": functools.partial(losses.cross_entropy, ignore_index=2, weight=WEIGHT),
    "smoothing": functools.partial(losses.cross_entropy, label_smoothing=0.1, weight=WEIGHT),
    "nll": losses.nll,
    "nll ignore": functools.partial(losses.nll, weight=WEIGHT, ignore_index=-100),
    "focal": functools.partial(losses.focal, alpha=WEIGHT),
    "focal ignore": functools.partial(losses.focal, ignore_index=-(2**40) + 1),
    "multi_margin": losses.multi_margin,
    "multi_margin weight": functools.partial(losses.multi_margin, weight=WEIGHT),
}


def forward(classes: int = CLASSES) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["scores"])],
        "forward",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", classes])],
        [numpy_helper.from_array(np.random.default_rng(0).normal(size=(4, classes)).astype(np.float32), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def with_own_loss(classes: int = CLASSES, labels: int = TensorProto.INT64, **attributes: object) -> onnx.ModelProto:
    """A model that brings its loss along."""
    model = forward(classes)
    model.graph.node.append(helper.make_node("SoftmaxCrossEntropyLoss", ["scores", "labels"], ["loss"], **attributes))
    model.graph.input.append(helper.make_tensor_value_info("labels", labels, ["N"]))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("loss", TensorProto.FLOAT, []))
    return model


def attempt(model: onnx.ModelProto, labels: np.ndarray) -> float:
    """Run any of the graphs; what the labels do not concern is there somehow."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).normal(size=(len(labels), 4)).astype(np.float32)
    feeds = {"x": x, "labels": labels}
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in forward(_classes(model)).graph.initializer}
    for value in session.get_inputs():
        if value.name in weights or value.name.startswith("w_grad"):
            feeds[value.name] = weights["w"]
        elif value.name not in feeds:
            feeds[value.name] = np.ones(value.shape, {"tensor(bool)": bool, "tensor(int64)": int}.get(value.type, "f"))
    return float(session.run([session.get_outputs()[0].name], feeds)[0])


def _classes(model: onnx.ModelProto) -> int:
    value = next(value for value in (*model.graph.input, *model.graph.initializer) if value.name == "w")
    shape = (
        value.dims if isinstance(value, onnx.TensorProto) else [d.dim_value for d in value.type.tensor_type.shape.dim]
    )
    return shape[1]


def graphs(model: onnx.ModelProto, loss: object) -> dict[str, onnx.ModelProto]:
    step = onward.training_step(model, loss, "sgd", trainable=["w"])
    whole = model
    if loss is not None:
        prepared = prepare(model)
        attach_loss(Builder(prepared.graph, prepared.opset_imports[""]), loss)
        whole = finish(prepared)
    made = split(whole, trainable=["w"], targets=["labels"])
    return {"training": made.training, "evaluation": made.evaluation, "step": step}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
def test_losses(loss):
    for kind, model in graphs(forward(), loss).items():
        assert np.isfinite(attempt(model, np.array([0, 4, 1]))), kind
        for wrong in WRONG:
            with pytest.raises(Exception, match=REFUSED):
                attempt(model, np.array([0, wrong, 1]))


@pytest.mark.parametrize("classes", [CLASSES, 1024])  # many classes are lowered
@pytest.mark.parametrize(("labels", "dtype"), [(TensorProto.INT64, np.int64), (TensorProto.INT32, np.int32)])
def test_losses_of_the_model_itself(classes, labels, dtype):
    for model in graphs(with_own_loss(classes, labels), None).values():
        assert np.isfinite(attempt(model, np.array([0, classes - 1, 1], dtype)))
        for wrong in (-1, classes):
            with pytest.raises(Exception, match=REFUSED):
                attempt(model, np.array([0, wrong, 1], dtype))


def test_what_is_ignored_may_be_negative():
    made = graphs(with_own_loss(ignore_index=-1), None)
    for model in made.values():
        both = attempt(model, np.array([3, -1]))
        assert both == pytest.approx(attempt(model, np.array([3])), rel=1e-6)
        with pytest.raises(Exception, match=REFUSED):
            attempt(model, np.array([3, -2]))


def test_ctc_checks_its_labels():
    """Padding may be anything, labels may not."""
    targets = [np.zeros((2, 2), int), np.array([4, 4]), np.array([1, 2])]
    model, feeds = loss_model(losses.ctc, [np.zeros((4, 2, CLASSES))], targets, dtype=np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

    def run(labels: list[list[int]]) -> float:
        return float(session.run(None, {**feeds, "labels": np.array(labels)})[0])

    assert run([[1, -1], [2, 3]]) == run([[1, 0], [2, 3]])
    for labels in ([[-1, 0], [2, 3]], [[1, 0], [2, -1]], [[1, 0], [CLASSES, 3]]):
        with pytest.raises(Exception, match=REFUSED):
            run(labels)


def test_the_training_loop_says_what_was_given(tmp_path):
    run = toys.Run.open(toys.generate(tmp_path, toys.mlp()))
    before = run.values()
    x, labels = toys.batch()
    labels[2] = -1
    for evaluate in (False, True):
        run.module.train(not evaluate)
        with pytest.raises(OnwardError, match=r"^labels 'labels' must be from 0 to 2. .* values from -1 to 2"):
            run.module(x, labels)
    for name, array in run.values().items():
        np.testing.assert_array_equal(array, before[name])

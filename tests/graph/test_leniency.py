"""What onnxruntime loads, onward loads, whatever onnx's checker and inference insist on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import onward


def _value(name: str, shape: tuple[int, ...] | None = (2,), kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _plain() -> onnx.ModelProto:
    graph = helper.make_graph([helper.make_node("Mul", ["x", "w"], ["y"])], "g", [_value("x")], [_value("y")])
    graph.initializer.append(numpy_helper.from_array(np.array([2, 3], np.float32), "w"))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def _without_name(model: onnx.ModelProto) -> None:
    model.graph.name = ""


def _without_type_of_outputs(model: onnx.ModelProto) -> None:
    model.graph.output[0].ClearField("type")


def _of_old_version(model: onnx.ModelProto) -> None:
    """Before version 4, every initializer had to be an input too."""
    model.ir_version, model.opset_import[0].version = 3, 8


def _of_oldest_version(model: onnx.ModelProto) -> None:
    model.ir_version = 1


def _with_an_unknown_domain(model: onnx.ModelProto) -> None:
    model.opset_import.append(helper.make_opsetid("made.up", 3))


def _with_wrong_shapes(model: onnx.ModelProto) -> None:
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 7


def _with_trailing_names(model: onnx.ModelProto) -> None:
    model.graph.node[0].output[0] = "a"
    model.graph.node.append(helper.make_node("Clip", ["a", "", ""], ["y"]))


def _with_value_info_of_nothing(model: onnx.ModelProto) -> None:
    model.graph.value_info.extend([_value("nobody", (9,)), onnx.ValueInfoProto(name="y")])


def _with_nodes_in_another_order(model: onnx.ModelProto) -> None:
    """As converters to float16 leave them, which append the casts of inputs."""
    model.opset_import[0].version = 17
    del model.graph.node[:]
    model.graph.node.extend(
        [helper.make_node("Mul", ["cast", "w"], ["y"]), helper.make_node("Identity", ["x"], ["cast"])]
    )


CHANGES: list[Callable[[onnx.ModelProto], None]] = [
    _of_old_version,
    _of_oldest_version,
    _with_trailing_names,
    _with_an_unknown_domain,
    _with_nodes_in_another_order,
    _with_value_info_of_nothing,
    _with_wrong_shapes,
    _without_name,
    _without_type_of_outputs,
]


@pytest.mark.parametrize("change", CHANGES)
def test_files_as_they_are(change: Callable[[onnx.ModelProto], None]) -> None:
    model = _plain()
    change(model)
    x = np.array([1, 5], np.float32)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})
    gradient = onnxruntime.InferenceSession(onward.gradient(model, wrt=["x"]).SerializeToString(), options)
    _, dx = gradient.run(None, {"x": x, "y_grad": np.ones(2, np.float32)})
    np.testing.assert_array_equal(dx, [2, 3])


@pytest.mark.parametrize("place", ["main", "body"])
@pytest.mark.parametrize("opset", [11, 13, 18])
def test_resize_with_empty_scales_in_a_loop(opset: int, place: str) -> None:
    """tf2onnx writes crop_and_resize like this; onnx's inference counts the empty scales as given since opset 13."""
    constants = [
        numpy_helper.from_array(np.array([], np.float32), "empty"),
        numpy_helper.from_array(np.array([1, 1, 3, 3]), "sizes"),
        numpy_helper.from_array(np.array([0, 0, 0, 0, 1, 1, 0.8, 0.7], np.float32), "region"),
    ]
    crop = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}
    nodes = [
        helper.make_node("Identity", ["go"], ["on"]),
        helper.make_node("Resize", ["x", "region", "empty", "sizes"], ["r"], **crop),
    ]
    inputs = [_value("i", (), TensorProto.INT64), _value("go", (), TensorProto.BOOL)]
    outputs = [_value("on", (), TensorProto.BOOL), _value("r", None)]
    body = helper.make_graph(nodes, "body", inputs, outputs, constants if place == "body" else [])
    loop = [
        helper.make_node("Loop", ["count", "yes"], ["all"], body=body),
        helper.make_node("ReduceSum", ["all"], ["y"], keepdims=0),
    ]
    counts = [numpy_helper.from_array(np.array(2), "count"), numpy_helper.from_array(np.array(True), "yes")]
    outer = [*counts, *(constants if place == "main" else [])]
    graph = helper.make_graph(loop, "g", [_value("x", (1, 1, 4, 4))], [_value("y", ())], outer)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    x = np.random.default_rng(0).normal(size=(1, 1, 4, 4)).astype(np.float32)
    plain = onnxruntime.InferenceSession(model.SerializeToString())
    gradient = onnxruntime.InferenceSession(onward.gradient(model, wrt=["x"]).SerializeToString())
    (y,), (again, dx) = plain.run(None, {"x": x}), gradient.run(None, {"x": x})
    np.testing.assert_allclose(again, y, rtol=1e-6)
    np.testing.assert_allclose((dx * x).sum(), y, rtol=1e-4, atol=1e-4)  # y is linear in x

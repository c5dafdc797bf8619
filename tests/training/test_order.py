"""When onnxruntime runs what."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from onward.training import split as splitting

LAYERS = ("first", "second", "third")


@pytest.fixture
def order(tmp_path):
    """The nodes of a network of three layers, in the order in which onnxruntime runs them."""
    nodes, x = [], "x"
    for layer in LAYERS:
        nodes.append(helper.make_node("MatMul", [x, f"{layer}.w"], [f"{layer}.y"], name=f"{layer}/product"))
        nodes.append(helper.make_node("Clip", [f"{layer}.y", "low", "high"], [f"{layer}.z"], name=f"{layer}/clip"))
        x = f"{layer}.z"
    nodes.append(helper.make_node("ReduceSum", [x], ["loss"], name="loss", keepdims=0))
    weights = [numpy_helper.from_array(np.eye(4, dtype=np.float32) + 0.1, f"{layer}.w") for layer in LAYERS]
    bounds = [numpy_helper.from_array(np.float32(value), name) for name, value in (("low", 0), ("high", 1))]
    graph = helper.make_graph(
        nodes,
        "three layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [*weights, *bounds],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    training = without_accumulation(splitting.split(model, trainable=None).training)
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    session = onnxruntime.InferenceSession(training.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {f"{layer}.w": np.eye(4, dtype=np.float32) for layer in LAYERS}
    session.run(None, {"x": np.ones((2, 4), np.float32), **feeds})
    events = json.loads(Path(session.end_profiling()).read_text())
    ends = "_kernel_time"
    names = [event["name"].removesuffix(ends) for event in events if event["name"].endswith(ends)]
    results = {node.name: node.output[0] for node in training.graph.node}
    return [results.get(name, name) for name in names]


def without_accumulation(model):
    """Gradients as results, as our runtime runs training models."""
    graph = model.graph
    nodes = [node for node in graph.node if not node.name.startswith("accumulate/")]
    gradients = [helper.make_tensor_value_info(f"{layer}.w_grad", TensorProto.FLOAT, [4, 4]) for layer in LAYERS]
    inputs = [i for i in graph.input if not (i.name.endswith(splitting.BUFFER) or i.name == splitting.RESET)]
    pruned = helper.make_graph(nodes, graph.name, inputs, [graph.output[0], *gradients], graph.initializer)
    return helper.make_model(pruned, opset_imports=model.opset_import, ir_version=model.ir_version)


def test_the_gradient_of_a_layer_is_ready_before_those_of_layers_below(order):
    ready = [order.index(f"{layer}.w_grad") for layer in LAYERS]
    assert ready == sorted(ready, reverse=True)


def test_a_mask_waits_for_the_gradient_that_it_meets(order):
    mask = next(index for index, name in enumerate(order) if name.startswith("grad/first/clip"))
    assert order.index("second.w_grad") < mask

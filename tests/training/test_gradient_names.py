"""Artifacts can be opened and train whatever the gradient of a parameter is: a constant, shared, or rewritten."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onward
from onward import api, artifacts
from onward.testing import run_on_runtime

OPSET = 20
SETTINGS = "int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[4] four = {1, 1, -1, 2}"

# The loss of w [2, 3, 4, 5] (or of its first axes) and x [2, 3], and the parameters.
LOSSES = {
    "einsum": ('y = Einsum<equation = "bi,ijk->bj">(x, w) loss = ReduceSum<keepdims = 0>(y)', {"w": (3, 4, 5)}),
    "sum": ("s = ReduceSum<keepdims = 0>(w) loss = Tanh(s)", {"w": (3, 4)}),
    "grid_sample": (
        "a = Slice(x, zero, two, one) g = Reshape(a, four) y = GridSample(w, g) loss = ReduceSum<keepdims = 0>(y)",
        {"w": (1, 3, 4, 4)},
    ),
    "constant": ("m = ReduceMean<keepdims = 0>(w) y = Add(m, x) loss = ReduceMean<keepdims = 0>(y)", {"w": (3, 4)}),
    "the parameter itself": ("loss = ReduceSum<keepdims = 0>(w)", {"w": (1,)}),
    "shared by two": (
        "y = Add(v, w) t = Tanh(y) loss = ReduceSum<keepdims = 0>(t)",
        {"v": (3,), "w": (3,)},
    ),
    "shared, of one value": ("y = Add(v, w) loss = ReduceMean<keepdims = 0>(y)", {"v": (3,), "w": (3,)}),
    "sliced": (
        "a, b = Split<axis = 0, num_outputs = 2>(w) y = Mul(a, b) loss = ReduceSum<keepdims = 0>(y)",
        {"w": (4, 3)},
    ),
    "named alike": ("w_grad = Tanh(w) y = Mul(w_grad, w) loss = ReduceSum<keepdims = 0>(y)", {"w": (3,)}),
}


def model_of(text: str, shapes: dict[str, tuple[int, ...]]) -> onnx.ModelProto:
    random = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : {OPSET}]> g (float[N, 3] x) => (float loss) <{SETTINGS}> {{ {text} }}'
    )
    for name, shape in shapes.items():
        model.graph.initializer.append(numpy_helper.from_array(random.uniform(-0.9, 0.9, shape).astype("f"), name))
    return model


def artifacts_of(model, folder):
    names = [tensor.name for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT]
    return artifacts.generate_artifacts(model, requires_grad=names, artifact_directory=folder)


def trained(paths, x):
    """The gradients of two passes: one by itself, then both together."""
    state = api.CheckpointState.load_checkpoint(paths["checkpoint"])
    module = api.Module(paths["training_model"], state)
    module.train()
    found = []
    for _ in range(2):
        module(x)
        found.append({name: parameter.grad.copy() for name, parameter in state.parameters})
    return found


@pytest.mark.parametrize(("text", "shapes"), LOSSES.values(), ids=LOSSES)
def test_gradients_are_found_by_their_names(text, shapes, tmp_path):
    model = model_of(text, shapes)
    x = np.random.default_rng(1).normal(size=(2, 3)).astype(np.float32)
    wanted = run_on_runtime(onward.gradient(model, wrt=list(shapes)), {"x": x})
    once, twice = trained(artifacts_of(model, tmp_path).paths, x)
    for name in shapes:
        np.testing.assert_allclose(once[name], wanted[f"{name}_grad"], rtol=1e-6)
        np.testing.assert_allclose(twice[name], 2 * once[name], rtol=1e-6)


def strip_names(model):
    for node in model.graph.node:
        node.name = ""


def strip_descriptions(model):
    del model.graph.value_info[:]


def rename_gradients(model):
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = ["dw" if name == "w_grad" else name for name in names]


@pytest.mark.parametrize("rewrite", [strip_names, strip_descriptions, rename_gradients])
def test_files_that_another_tool_has_rewritten_train_too(rewrite, tmp_path):
    x = np.random.default_rng(1).normal(size=(2, 3)).astype(np.float32)
    paths = artifacts_of(model_of(*LOSSES["sliced"]), tmp_path).paths
    wanted = trained(paths, x)
    model = onnx.load(paths["training_model"])
    rewrite(model)
    onnx.save(model, paths["training_model"])
    for got, expected in zip(trained(paths, x), wanted, strict=True):
        np.testing.assert_array_equal(got["w"], expected["w"])

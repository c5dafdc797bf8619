"""`onnx_derivative`: inputs and outputs of each option, and the numbers of each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose

from onward.onnxcustom.training.grad_helper import DerivativeOptions, onnx_derivative
from onward.onnxcustom.utils.orttraining_helper import add_loss_output
from onward.runtime.session import open_session
from tests.onnxcustom.models import data, linear, network

X, Y = data(7)
DY = np.random.default_rng(0).normal(size=(7, 1)).astype(np.float32)
COEF = np.array([[0.1], [0.2], [0.3]], np.float32)
WEIGHTS = {"coef": COEF, "intercept": np.array([0.5], np.float32)}
Options = DerivativeOptions


def names(model: onnx.ModelProto) -> tuple[list[str], list[str]]:
    return [value.name for value in model.graph.input], [value.name for value in model.graph.output]


def run(model: onnx.ModelProto, **feeds: np.ndarray) -> dict[str, np.ndarray]:
    onnx.checker.check_model(model, full_check=True)
    results = open_session(model.SerializeToString()).run(None, feeds)
    return dict(zip(names(model)[1], results, strict=True))


def test_gradient_of_outputs_is_taken() -> None:
    model = onnx_derivative(linear())
    assert names(model) == (["X", "coef", "intercept", "variable_grad"], ["X_grad", "coef_grad", "intercept_grad"])
    got = run(model, X=X, variable_grad=DY, **WEIGHTS)
    assert_allclose(got["X_grad"], DY @ COEF.T, rtol=1e-5)
    assert_allclose(got["coef_grad"], X.T @ DY, rtol=1e-5)
    assert_allclose(got["intercept_grad"], [DY.sum()], rtol=1e-5)
    assert "MatMul" not in [node.op_type for node in model.graph.node], "what only outputs need is gone"


def test_outputs_are_kept() -> None:
    model = onnx_derivative(linear(), options=Options.KeepOutputs)
    assert names(model)[1] == ["X_grad", "coef_grad", "intercept_grad", "variable"]
    got = run(model, X=X, variable_grad=DY, **WEIGHTS)
    assert_allclose(got["variable"], X @ COEF + 0.5, rtol=1e-5)


def test_gradients_of_outputs_are_ones() -> None:
    model = onnx_derivative(linear(), weights=[], options=Options.KeepOutputs | Options.FillGrad)
    assert names(model) == (["X"], ["X_grad", "variable"])
    assert_allclose(run(model, X=X)["X_grad"], np.tile(COEF.T, (7, 1)), rtol=1e-6)
    with pytest.raises(ValueError, match="FillGrad needs KeepOutputs"):
        onnx_derivative(linear(), options=Options.FillGrad)


def test_weights_and_inputs_can_be_chosen() -> None:
    assert names(onnx_derivative(linear(), weights=[]))[1] == ["X_grad"]
    assert names(onnx_derivative(linear(), weights=["intercept"], inputs=[])) == (
        ["X", "intercept", "variable_grad"],
        ["intercept_grad"],
    )


def test_the_gradient_of_one_element_is_taken_too() -> None:
    model = onnx_derivative(add_loss_output(linear()), weights=["coef"], inputs=[])
    assert names(model)[0] == ["X", "label", "coef", "loss_grad", "variable_grad"]
    zero, two = np.zeros((7, 1), np.float32), np.array([[2.0]], np.float32)
    got = run(model, X=X, label=Y[:, None], coef=COEF, loss_grad=two, variable_grad=zero)
    assert_allclose(got["coef_grad"], 2 * 2 * X.T @ (X @ COEF + 0.5 - Y[:, None]), rtol=1e-4)


def test_yield() -> None:
    model = onnx_derivative(network(), options=Options.KeepYieldOp)
    assert names(model) == (
        ["X", "I0_A", "I1_a", "I2_B", "I3_b"],
        ["X_grad", "I0_A_grad", "I1_a_grad", "I2_B_grad", "I3_b_grad"],
    )
    node = next(node for node in model.graph.node if node.op_type == "YieldOp")
    assert (node.domain, list(node.input), list(node.output)) == ("com.microsoft", ["Y"], ["Y_grad"])
    seen = set(names(model)[0]) | {tensor.name for tensor in model.graph.initializer}
    for other in model.graph.node:
        assert seen >= set(other.input), "nodes are in order"
        seen.update(other.output)
    with pytest.raises(ValueError, match="KeepYieldOp cannot be combined"):
        onnx_derivative(linear(), options=Options.KeepYieldOp | Options.KeepOutputs)


def test_loss(tmp_path: Path) -> None:
    path = tmp_path / "gradient.onnx"
    model = onnx_derivative(add_loss_output(linear()), options=Options.Loss, label="label", loss="loss", path_name=path)
    assert names(model) == (["X", "label"], ["loss", "variable", "X_grad"])
    assert onnx.load(path) == model
    got = run(model, X=X, label=Y[:, None])
    assert_allclose(got["X_grad"], 2 * (X @ COEF + 0.5 - Y[:, None]) @ COEF.T, rtol=1e-4)
    for arguments, message in (
        ({"label": "label", "loss": "loss"}, "path_name"),
        ({"label": "label", "path_name": path}, "loss the output"),
        ({"loss": "loss", "path_name": path}, "label names"),
        ({"label": "label", "loss": "loss", "path_name": path, "weights": ["coef"]}, "weights must be None"),
    ):
        with pytest.raises(ValueError, match=message):
            onnx_derivative(linear(), options=Options.Loss, **arguments)  # type: ignore[arg-type]


def test_a_loss_that_is_not_in_the_graph(tmp_path: Path) -> None:
    """Scripts name the prediction then, whose gradient is taken."""
    path = tmp_path / "gradient.onnx"
    model = onnx_derivative(linear(), options=Options.Loss, label="variable", loss="loss", path_name=path)
    assert names(model) == (["X", "variable_grad"], ["variable", "X_grad"])


def test_options_have_their_type() -> None:
    with pytest.raises(TypeError, match="options must be DerivativeOptions, not int"):
        onnx_derivative(linear(), options=1)  # type: ignore[arg-type]
    assert Options.Loss == Options.KeepYieldOp | Options.FillGrad == 5

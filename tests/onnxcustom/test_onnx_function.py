"""The small graphs, against numpy, and their gradients against `onward.gradient`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose
from scipy.special import expit

import onward
from onward.onnxcustom import get_max_opset
from onward.onnxcustom.utils.onnx_function import function_onnx_graph, get_supported_functions
from onward.onnxcustom.utils.onnx_rewriter import unreduced_onnx_loss
from onward.runtime.session import open_session

DRAW = np.random.default_rng(0)


def run(model: onnx.ModelProto, **feeds: np.ndarray) -> dict[str, np.ndarray]:
    session = open_session(model.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def pair(dtype: type = np.float32) -> tuple[np.ndarray, np.ndarray]:
    return DRAW.normal(size=(10, 1)).astype(dtype), DRAW.normal(size=(10, 1)).astype(dtype)


def test_names() -> None:
    assert set(get_supported_functions()) >= set(
        "axpy axpyw axpyw2 copy zero linear_regression square_error grad_square_error grad_loss_square_error "
        "grad_loss_absolute_error grad_loss_elastic_error grad_penalty_elastic_error n_penalty_elastic_error "
        "update_penalty_elastic_error grad_sigmoid_neg_log_loss_error".split()
    )
    assert all(get_supported_functions().values()), "each has a description"
    with pytest.raises(ValueError, match="there is no function 'H'; known are axpy"):
        function_onnx_graph("H")
    with pytest.raises(TypeError):
        function_onnx_graph("axpy", weight_name="weight")


def test_default_opset() -> None:
    assert function_onnx_graph("axpy").opset_import[0].version == get_max_opset()
    assert function_onnx_graph("axpy", target_opset=13).opset_import[0].version == 13


@pytest.mark.parametrize("opset", [7, 8, 9, 12, 17, 20])
def test_any_opset(opset: int) -> None:
    x1, x2 = pair()
    model = function_onnx_graph("grad_loss_elastic_error", opset, l1_weight=0.5, l2_weight=0.0)
    assert model.opset_import[0].version == max(opset, 9), "Sign is there from 9 on"
    assert_allclose(run(model, X1=x1, X2=x2)["Y_grad"], -0.5 * np.sign(x1 - x2))
    labels = (x1 > 0).astype(np.int64)
    run(function_onnx_graph("grad_sigmoid_neg_log_loss_error", opset), X1=labels, X2=x2)


@pytest.mark.parametrize("shape", [(), (1,), (4, 2)])
def test_steps_keep_the_shape(shape: tuple[int, ...]) -> None:
    x1, x2, g = (DRAW.normal(size=shape).astype(np.float32) for _ in range(3))
    alpha, beta = np.array([-0.5], np.float32), np.array([0.9], np.float32)
    assert_allclose(run(function_onnx_graph("axpy"), X1=x1, X2=x2, alpha=alpha)["Y"], -0.5 * x1 + x2, rtol=1e-6)
    z = -0.5 * x1 + 0.9 * g
    for name, y in (("axpyw", z + x2), ("axpyw2", 0.9 * z - 0.5 * x1 + x2)):
        got = run(function_onnx_graph(name), X1=x1, X2=x2, G=g, alpha=alpha, beta=beta)
        # Cancellation: the sums are of numbers of about 1.
        assert_allclose(got["Y"], y, rtol=1e-5, atol=1e-6)
        assert_allclose(got["Z"], z, rtol=1e-5, atol=1e-6)
        assert got["Y"].shape == shape == got["Z"].shape


def test_copy_zero_and_line() -> None:
    x = DRAW.normal(size=(3, 2)).astype(np.float32)
    assert (run(function_onnx_graph("copy"), X=x)["Y"] == x).all()
    nan = np.full((2, 2), np.nan, np.float32)
    assert (run(function_onnx_graph("zero"), X=nan)["Y"] == 0).all(), "0 whatever was there"
    a, b = DRAW.normal(size=(2, 4)).astype(np.float32), DRAW.normal(size=(1, 4)).astype(np.float32)
    assert_allclose(run(function_onnx_graph("linear_regression"), X=x, A=a, B=b)["Y"], x @ a + b, rtol=1e-5)


Rows = Callable[[np.ndarray], np.ndarray]
LOSSES: dict[str, tuple[str, dict[str, Any], Rows]] = {
    "square": ("grad_loss_square_error", {}, lambda d: d**2),
    "half square": ("grad_loss_square_error", {"multiply": 1}, lambda d: d**2 / 2),
    "absolute": ("grad_loss_absolute_error", {}, abs),
    "elastic": (
        "grad_loss_elastic_error",
        {"l1_weight": 0.1, "l2_weight": 0.9},
        lambda d: 0.1 * abs(d) + 0.9 * d**2,
    ),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weight_name", [None, "weight", "importance"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str, weight_name: str | None, dtype: type) -> None:
    """Y is the sum of weighted rows; the gradient is the derivative of it, which `onward.gradient` finds by itself."""
    function, options, rows = LOSSES[name]
    model = function_onnx_graph(function, get_max_opset(), dtype, weight_name, **options)
    x1, x2 = pair(dtype)
    w = DRAW.random(10).astype(dtype)
    feeds = {} if weight_name is None else {weight_name: w}
    expected = rows(x1 - x2) * (1 if weight_name is None else w[:, None])
    got = run(model, X1=x1, X2=x2, **feeds)
    assert got["Y"].shape == (1,)
    assert_allclose(got["Y"], expected.sum(), rtol=1e-5)
    derived = run(onward.gradient(model, ["X2"], "Y"), X1=x1, X2=x2, **feeds)["X2_grad"]
    assert_allclose(got["Y_grad"], derived, rtol=1e-5)
    assert (got["Z"] == got["Y_grad"]).all(), "the name that older releases had for it"
    score = run(unreduced_onnx_loss(model), X1=x1, X2=x2, **feeds)["score"]
    assert_allclose(score, expected, rtol=1e-5)


@pytest.mark.parametrize("weight_name", [None, "weight"])
def test_log_loss(weight_name: str | None) -> None:
    scores = np.array([0, 100, -100, 1, -1, 0.3], np.float32)[:, None]
    labels = np.array([0, 0, 1, 1, 0, 1], np.int64)[:, None]
    w = np.ones((6, 1), np.float32) if weight_name is None else DRAW.random((6, 1)).astype(np.float32)
    feeds = {} if weight_name is None else {weight_name: w[:, 0]}
    model = function_onnx_graph("grad_sigmoid_neg_log_loss_error", weight_name=weight_name)
    got = run(model, X1=labels, X2=scores, **feeds)
    p = np.clip(expit(scores), 1e-5, 1 - 1e-5)
    rows = -w * ((1 - labels) * np.log(1 - p) + labels * np.log(p))
    # float32: 1 - p of a p near 1 has few digits.
    assert_allclose(got["Y"], rows.sum(), rtol=1e-3)
    assert_allclose(got["Y_grad"], w * (p - labels), rtol=1e-4, atol=1e-6)
    assert_allclose(run(unreduced_onnx_loss(model), X1=labels, X2=scores, **feeds)["score"], rows, rtol=1e-2, atol=1e-6)


def test_weights_are_one_where_they_are_not_fed() -> None:
    x1, x2 = pair()
    for name in ("square_error", "grad_square_error", "grad_loss_absolute_error"):
        without = run(function_onnx_graph(name), X1=x1, X2=x2)["Y"]
        assert (run(function_onnx_graph(name, weight_name="weight"), X1=x1, X2=x2)["Y"] == without).all()


def test_square_error_and_its_gradient() -> None:
    x1, x2 = pair()
    w = DRAW.random(10).astype(np.float32)
    got = run(function_onnx_graph("square_error", weight_name="weight"), X1=x1, X2=x2, weight=w)["Y"]
    assert_allclose(got, (w[:, None] * (x1 - x2) ** 2).sum(), rtol=1e-5)
    got = run(function_onnx_graph("grad_square_error", weight_name="weight"), X1=x1, X2=x2, weight=w)["Y"]
    assert_allclose(got, -2 * w[:, None] * (x1 - x2), rtol=1e-5)


def test_penalties() -> None:
    x, other = pair()
    options = {"l1_weight": 0.1, "l2_weight": 0.9}

    def penalty(w: np.ndarray) -> float:
        return float(0.1 * abs(w).sum() + 0.9 * (w**2).sum())

    got = run(function_onnx_graph("grad_penalty_elastic_error", **options), X=x)
    assert_allclose(got["Y"], penalty(x), rtol=1e-5)
    assert_allclose(got["Y_grad"], 0.1 * np.sign(x) + 1.8 * x, rtol=1e-5)
    model = function_onnx_graph("n_penalty_elastic_error", weight_name="weight", n_tensors=2, **options)
    loss = np.array([[3.0]], np.float32)
    assert_allclose(run(model, loss=loss, W0=x, W1=other)["Y"], [3 + penalty(x) + penalty(other)], rtol=1e-5)
    got = run(function_onnx_graph("update_penalty_elastic_error", l1=0.1, l2=0.4), X=x)
    assert_allclose(got["Y"], x - 0.1 * np.sign(x) - 0.8 * x, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="n_tensors must be above 0"):
        function_onnx_graph("n_penalty_elastic_error", n_tensors=0)


def test_constants_can_be_read_from_typed_fields() -> None:
    model = function_onnx_graph("update_penalty_elastic_error", l1=0.0, l2=0.25)
    assert sorted(list(tensor.float_data) for tensor in model.graph.initializer) == [[0.0], [0.5]]

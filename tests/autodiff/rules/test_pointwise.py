"""Functions of one tensor: smooth ones everywhere, kinks by what torch does there."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

import onward
from onward.testing import check_vjp, run_on_runtime

RANDOM = np.random.default_rng(0)
ANY = RANDOM.normal(size=(3, 4)) * 2
POSITIVE = RANDOM.uniform(0.3, 3.0, size=(3, 4))
UNIT = RANDOM.uniform(-0.9, 0.9, size=(3, 4))
ABOVE_ONE = RANDOM.uniform(1.2, 3.0, size=(3, 4))
# Far enough from -3, -2.5, -1, -0.5, 0, 0.5, 1, 2.5 and 3, where the piecewise functions below have kinks.
PIECES = np.array([-4.2, -3.4, -2.2, -1.3, -0.8, -0.3, 0.2, 0.7, 1.4, 2.2, 2.7, 3.6]).reshape(3, 4)


@pytest.mark.parametrize(
    ("op_type", "x", "opset"),
    [
        ("Identity", ANY, 13),
        ("Identity", ANY, 16),
        ("Neg", ANY, 12),
        ("Abs", PIECES, 13),
        ("Relu", PIECES, 12),
        ("Relu", PIECES, 18),
        ("Exp", ANY, 12),
        ("Log", POSITIVE, 13),
        ("Sqrt", POSITIVE, 12),
        ("Reciprocal", POSITIVE, 13),
        ("Sin", ANY, 12),
        ("Cos", ANY, 18),
        ("Tan", UNIT, 22),
        ("Asin", UNIT, 12),
        ("Acos", UNIT, 22),
        ("Atan", ANY, 18),
        ("Sinh", UNIT, 12),
        ("Cosh", UNIT, 22),
        ("Tanh", ANY, 12),
        ("Tanh", ANY, 18),
        ("Asinh", ANY, 12),
        ("Acosh", ABOVE_ONE, 22),
        ("Atanh", UNIT, 18),
        ("Sigmoid", ANY, 12),
        ("Sigmoid", ANY, 22),
        ("Softplus", ANY, 12),
        ("Softplus", ANY, 22),
        ("Softsign", PIECES, 18),
        ("Erf", ANY, 12),
        ("Erf", ANY, 18),
        ("HardSwish", PIECES, 14),
        ("HardSwish", PIECES, 22),
        ("Mish", ANY, 18),
        ("Mish", ANY, 22),
    ],
)
def test_without_attributes(op_type, x, opset):
    check_vjp(op_type, [x], opset=opset)


@pytest.mark.parametrize(
    ("op_type", "x", "opset", "attributes"),
    [
        ("LeakyRelu", PIECES, 12, {}),
        ("LeakyRelu", PIECES, 18, {"alpha": 0.3}),
        ("ThresholdedRelu", PIECES, 12, {}),
        ("ThresholdedRelu", PIECES, 22, {"alpha": 0.5}),
        ("Elu", PIECES, 12, {}),
        ("Elu", PIECES, 22, {"alpha": 0.7}),
        ("Selu", PIECES, 12, {}),
        ("Selu", PIECES, 22, {"alpha": 0.7, "gamma": 2.0}),
        ("HardSigmoid", PIECES, 12, {}),
        ("HardSigmoid", PIECES, 22, {"alpha": 1 / 6, "beta": 0.5}),
        ("Shrink", PIECES, 12, {}),
        ("Shrink", PIECES, 18, {"lambd": 1.0, "bias": 0.5}),
        ("Gelu", ANY, 20, {}),
        ("Gelu", ANY, 20, {"approximate": "none"}),
        ("Gelu", ANY, 22, {"approximate": "tanh"}),
        ("Swish", ANY, 24, {}),
        ("Swish", ANY, 24, {"alpha": 1.7}),
    ],
)
def test_with_attributes(op_type, x, opset, attributes):
    check_vjp(op_type, [x], opset=opset, **attributes)


@pytest.mark.parametrize("opset", [12, 18])
@pytest.mark.parametrize("alpha", [1.0, 0.5, 2.0])
def test_celu(opset, alpha):
    # The standard has it in float only.
    check_vjp("Celu", [PIECES], opset=opset, alpha=alpha, dtype=np.float32, tolerance=5e-3)


KINKS = np.array([-3, -0.5, -0.0, 0, 0.5, 3], np.float32)


@pytest.mark.parametrize(
    ("op_type", "opset", "function", "attributes"),
    [
        ("Relu", 13, torch.relu, {}),
        ("Abs", 13, torch.abs, {}),
        ("LeakyRelu", 13, lambda x: torch.nn.functional.leaky_relu(x, 0.1), {"alpha": 0.1}),
        ("Elu", 13, torch.nn.functional.elu, {}),
        ("Selu", 13, torch.nn.functional.selu, {}),
        ("Celu", 13, lambda x: torch.nn.functional.celu(x, 0.5), {"alpha": 0.5}),
        ("HardSwish", 14, torch.nn.functional.hardswish, {}),
        ("HardSigmoid", 13, torch.nn.functional.hardsigmoid, {"alpha": 1 / 6, "beta": 0.5}),
        ("ThresholdedRelu", 13, lambda x: torch.nn.functional.threshold(x, 0.5, 0.0), {"alpha": 0.5}),
        ("Shrink", 13, lambda x: torch.nn.functional.hardshrink(x, 0.5), {"lambd": 0.5}),
        ("Softsign", 13, torch.nn.functional.softsign, {}),
    ],
)
def test_kinks_as_in_torch(op_type, opset, function, attributes):
    got = gradient_at(op_type, KINKS, opset, **attributes)
    x = torch.tensor(KINKS, requires_grad=True)
    function(x).sum().backward()
    np.testing.assert_allclose(got, x.grad, atol=1e-6)


@pytest.mark.parametrize(
    ("op_type", "opset", "attributes"),
    [
        *((op_type, 13, {}) for op_type in "Elu Erf Relu Selu Sigmoid Softplus Tanh".split()),
        ("Mish", 18, {}),
        ("Swish", 24, {}),
        ("Gelu", 20, {}),
        ("Gelu", 20, {"approximate": "tanh"}),
    ],
)
def test_large_arguments_stay_finite(op_type, opset, attributes):
    assert np.all(np.isfinite(gradient_at(op_type, np.array([-1e4, -90, 90, 1e4], np.float32), opset, **attributes)))


def gradient_at(op_type, x, opset, **attributes):
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape) for name in "xy"]
    graph = helper.make_graph([helper.make_node(op_type, ["x"], ["y"], **attributes)], "g", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return run_on_runtime(onward.gradient(model, wrt=["x"]), {"x": x, "y_grad": np.ones_like(x)})["x_grad"]


@pytest.mark.parametrize("to", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("source", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("like", [False, True])
def test_cast(source, to, like):
    x = ANY.astype(source)
    types = [helper.np_dtype_to_tensor_dtype(np.dtype(dtype)) for dtype in (source, to)]
    infos = [helper.make_tensor_value_info("x", types[0], x.shape), helper.make_tensor_value_info("t", types[1], [1])]
    node = (
        helper.make_node("CastLike", ["x", "t"], ["y"]) if like else helper.make_node("Cast", ["x"], ["y"], to=types[1])
    )
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", types[1], x.shape)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
    dy = RANDOM.normal(size=x.shape).astype(to)
    feeds = {"x": x, "t": np.ones(1, to), "y_grad": dy}
    result = run_on_runtime(onward.gradient(model, wrt=["x"]), feeds)["x_grad"]
    assert result.dtype == source
    np.testing.assert_array_equal(result, dy.astype(source))

"""Gradients of half- and double-precision models run on onnxruntime wherever the forward operator does."""

import numpy as np
import pytest
from onnx import helper

import onward
from onward.testing import run_on_runtime

X = np.random.default_rng(0).uniform(0.2, 0.9, size=(4, 6))
ROW = X[0] + 0.1
LABELS = np.array([0, 1, 2, 5])
POINTWISE = (
    "Abs Acos Asin Asinh Atan Atanh Cos Cosh Elu Erf Exp HardSigmoid LeakyRelu Log LogSoftmax LpNormalization Neg "
    "Reciprocal Relu Selu Shrink Sigmoid Sin Sinh Softmax Softplus Softsign Sqrt Tan Tanh ThresholdedRelu"
).split()
REDUCTIONS = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split()

CASES = [
    *((op_type, 13, [X], {}) for op_type in POINTWISE),
    *((f"Reduce{name}", opset, [X], {}) for name in REDUCTIONS for opset in (13, 18)),
    *((op_type, 13, [X, ROW], {}) for op_type in "Add Div Max Mean Min Mul Pow PRelu Sub Sum".split()),
    ("HardSwish", 14, [X], {}),
    ("Mish", 18, [X], {}),
    ("Gelu", 20, [X], {}),
    ("Gelu", 20, [X], {"approximate": "tanh"}),
    ("Swish", 24, [X], {}),
    ("Mod", 13, [X * 5, ROW], {"fmod": 1}),
    ("Where", 16, [X > 0.5, X, ROW], {}),
    ("Clip", 13, [X, np.array(0.3), np.array(0.7)], {}),
    ("MatMul", 13, [X, X.T], {}),
    ("MatMul", 13, [X[None], X.T], {}),
    ("MatMul", 13, [X[None], X.T[None]], {}),
    ("Gemm", 13, [X, X.T, ROW[:4]], {}),
    ("BatchNormalization", 15, [X, ROW, ROW, ROW, ROW], {}),
    ("InstanceNormalization", 13, [X[None], X[:, 0], X[:, 1]], {}),
    ("LayerNormalization", 17, [X, ROW, ROW], {}),
    ("RMSNormalization", 23, [X, ROW], {}),
    ("SoftmaxCrossEntropyLoss", 13, [X, LABELS], {}),
    ("SoftmaxCrossEntropyLoss", 13, [X, LABELS, ROW], {"ignore_index": 1}),
    ("NegativeLogLikelihoodLoss", 13, [X, LABELS, ROW], {"reduction": "none"}),
]
# onnxruntime's CPU provider has no double kernel of these; half precision it computes in float.
NO_DOUBLE = (
    "Acos Asin Asinh Atan Atanh Cosh Elu Erf HardSigmoid HardSwish InstanceNormalization LeakyRelu Mean PRelu Selu "
    "Sinh Softplus Softsign Tan ThresholdedRelu"
).split()


def gradients(op_type, opset, inputs, attributes, dtype):
    feeds = {f"x{i}": x.astype(dtype) if x.dtype == np.float64 else x for i, x in enumerate(inputs)}
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in feeds.items()
    ]
    output = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), None)
    graph = helper.make_graph([helper.make_node(op_type, list(feeds), ["y"], **attributes)], "g", infos, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    wrt = [name for name, x in feeds.items() if x.dtype == dtype]
    forward = run_on_runtime(model, feeds)["y"]
    results = run_on_runtime(onward.gradient(model, wrt=wrt), {**feeds, "y_grad": np.ones_like(forward)})
    return [results[f"{name}_grad"] for name in wrt]


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
@pytest.mark.parametrize(("op_type", "opset", "inputs", "attributes"), CASES)
def test_same_gradient_in_other_precisions(op_type, opset, inputs, attributes, dtype):
    if dtype == np.float64 and (op_type in NO_DOUBLE or (op_type == "Gelu" and not attributes)):
        pytest.skip("onnxruntime has no double kernel of the forward operator")
    tolerance = 2e-2 if dtype == np.float16 else 1e-5  # float16 has three digits, some rules lose one
    wanted = gradients(op_type, opset, inputs, attributes, np.float32)
    for got, expected in zip(gradients(op_type, opset, inputs, attributes, dtype), wanted, strict=True):
        assert got.dtype == dtype
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)

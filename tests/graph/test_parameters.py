"""Trainable parameters are told from the other constants in a file."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onward.graph.parameters import parameters
from onward.graph.prepare import prepare

WEIGHT = np.array([[0.5, -1.0], [2.0, 0.25]], np.float32)
VECTOR = np.array([0.5, -1.0], np.float32)
LOWEST = float(np.finfo(np.float32).min)


def judged(body: str, signature: str = "float[2, 2] x", **initializers: np.ndarray) -> dict[str, tuple[bool, str]]:
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> judged ({signature}) => (float[N, M] y) {{ {body} }}'
    )
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in initializers.items())
    return {parameter.name: (parameter.trainable, parameter.reason) for parameter in parameters(prepare(model))}


TRAINABLE = {
    "matrix": ("y = MatMul(x, p)", WEIGHT),
    "bias": ("y = Add(x, p)", VECTOR),
    "fresh bias": ("y = Add(x, p)", np.zeros(2, np.float32)),
    "fresh norm weight": ("y = Mul(x, p)", np.ones(2, np.float32)),
    "layer that starts at zero": ("y = MatMul(x, p)", np.zeros((2, 2), np.float32)),
    "the same, transposed": ("t = Transpose(p) y = MatMul(x, t)", np.zeros((2, 2), np.float32)),
    "one element": ("y = Mul(x, p)", np.array([0.5], np.float32)),
    "half": ("c = Cast<to = 1>(p) y = MatMul(x, c)", WEIGHT.astype(np.float16)),
    "setting and weight": ("z = Pow(x, p) y = Mul(z, p)", VECTOR),
    "weight behind a Concat": ("c = Concat<axis = 0>(p, p) r = Reshape(c, s) y = MatMul(x, r)", VECTOR),
    "Constant node": ("p = Constant<value = float[2] {0.5, -1.0}>() y = Add(x, p)", None),
    "unused": ("y = Neg(x)", WEIGHT),
    "fresh scale of channels": ("y = Mul(x, p)", np.ones((2, 1), np.float32)),
    "fresh bias of channels": ("y = Add(x, p)", np.zeros((1, 2, 1), np.float32)),
    "fresh norm over two axes": ("y = LayerNormalization<axis = 0>(x, p)", np.ones((2, 2), np.float32)),
    "fresh norm": ("y = LayerNormalization(x, p)", np.ones(2, np.float32)),
    "norm in a Constant": ("p = Constant<value = float[2] {1.0, 0.5}>() y = LayerNormalization(x, p)", None),
}


@pytest.mark.parametrize("case", TRAINABLE)
def test_trainable(case: str) -> None:
    body, array = TRAINABLE[case]
    found = judged(body, "float[2, 2] x, int64[2] s", **({} if array is None else {"p": array}))
    assert found["p"] == (True, "floating-point weight")


def test_biases_of_a_recurrent_layer_may_start_at_zero() -> None:
    found = judged(
        ", h = RNN<hidden_size = 2>(x, w, r, p, , start) y = Squeeze(h)",
        "float[3, 2, 2] x, float[1, 2, 2] w, float[1, 2, 2] r",
        p=np.zeros((1, 4), np.float32),
        start=np.zeros((1, 2, 2), np.float32),
    )
    assert found == {"p": (True, "floating-point weight"), "start": (False, MASK)}


NONE = "a scale or a bias that the exporter wrote for a norm without one"
SCALAR, MASK = "a scalar constant", "a mask"
NOT_TRAINABLE = {
    "shape": ("y = Reshape(x, p)", np.array([2, 2]), "not floating point (int64, shape of Reshape)"),
    "quantised": ("d = DequantizeLinear(p, s) y = MatMul(x, d)", np.ones((2, 2), np.int8), "quantised (int8)"),
    "unused integers": ("y = Neg(x)", np.arange(3), "not floating point (int64)"),
    "condition": ("y = Where(p, x, x)", np.array([True, False]), "not floating point (bool, condition of Where)"),
    "exponent": ("y = Pow(x, p)", np.array([2], np.float32), "exponent of Pow"),
    "bound": ("y = Clip(x, p)", np.array(0, np.float32), "lower bound of Clip"),
    "scales": ("y = Resize(x, , p)", np.array([1, 2], np.float32), "scales of Resize"),
    "scales behind a Concat": (
        "c = Concat<axis = 0>(p, q) y = Resize(x, , c)",
        np.array([1], np.float32),
        "scales of Resize",
    ),
    "exponent behind a Cast": ("c = Cast<to = 1>(p) y = Pow(x, c)", np.array([2, 3], np.float64), "exponent of Pow"),
    "scalar": ("y = Mul(x, p)", np.array(0.125, np.float32), SCALAR),
    "scalar in a Constant": ("p = Constant<value = float[1] {0.125}>() y = Mul(x, p)", None, SCALAR),
    "mask of the lowest float": ("y = Add(x, p)", np.array([[0, LOWEST], [0, 0]], np.float32), MASK),
    "mask of infinities": ("y = Add(x, p)", np.array([[0, -np.inf], [0, 0]], np.float32), MASK),
    "mask of ones": ("y = Mul(x, p)", np.array([[1, 0], [1, 1]], np.float32), MASK),
    "mask without holes": ("y = Mul(x, p)", np.ones((2, 2), np.float32), MASK),
    "mask of columns": ("y = Add(x, p)", np.zeros((1, 2), np.float32), MASK),
    "mask of rows": ("y = Mul(x, p)", np.array([[1], [0]], np.float32), MASK),
    "ones in a Constant": ("p = Constant<value = float[2, 1] {1.0, 1.0}>() y = Mul(x, p)", None, MASK),
    "scale that a norm has not": (
        "p = Constant<value = float[2] {1.0, 1.0}>() y = LayerNormalization(x, p)",
        None,
        NONE,
    ),
    "bias that a norm has not": (
        "w = Constant<value = float[2] {0.5, 1.0}>() p = Constant<value = float[2] {0.0, 0.0}>() "
        "y = LayerNormalization(x, w, p)",
        None,
        NONE,
    ),
}


@pytest.mark.parametrize("case", NOT_TRAINABLE)
def test_not_trainable(case: str) -> None:
    body, array, reason = NOT_TRAINABLE[case]
    found = judged(body, "float[2, 2] x, float s, float[1] q", **({} if array is None else {"p": array}))
    assert found["p"] == (False, reason)


def test_running_statistics_are_not_parameters() -> None:
    found = judged(
        "y = BatchNormalization(x, scale, bias, mean, var)",
        **{name: np.ones(2, np.float32) for name in ("scale", "bias", "mean", "var")},
    )
    assert {name for name, (trainable, _) in found.items() if trainable} == {"scale", "bias"}
    assert found["mean"] == (False, "running mean of BatchNormalization")
    assert found["var"] == (False, "running variance of BatchNormalization")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("PARAMETER", (True, "floating-point weight")), ("BUFFER", (False, "torch exported it as buffer"))],
)
def test_what_torch_recorded_is_believed(kind: str, expected: tuple[bool, str]) -> None:
    """A parameter that looks like a mask is one; a buffer that looks like a weight is none."""
    array = np.eye(2, dtype=np.float32) if kind == "PARAMETER" else WEIGHT
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18]> torch (float[2, 2] x) => (float[2, 2] y) { y = MatMul(x, p) }'
    )
    model.graph.initializer.append(numpy_helper.from_array(array, "p"))
    info = onnx.helper.make_tensor_value_info("p", onnx.TensorProto.FLOAT, [2, 2])
    info.metadata_props.add(key="pkg.torch.export.graph_signature.InputSpec.kind", value=kind)
    model.graph.value_info.append(info)
    (found,) = parameters(prepare(model))
    assert (found.trainable, found.reason) == expected

"""Which constants are trained, where they were in the file, and why not the others."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onward
from tests.inspection.models import VECTOR, WEIGHT, layer, model

MASK = np.array([[0, -np.inf], [0, 0]], np.float32)

# Body, the array of `p` (None: the body has it), and why it is not trained.
REASONS: dict[str, tuple[str, np.ndarray | None, str]] = {
    "shape": ("y = Reshape(x, p)", np.array([2, 2]), "not floating point (int64, shape of Reshape)"),
    "quantised": ("d = DequantizeLinear(p, s) y = MatMul(x, d)", np.ones((2, 2), np.int8), "quantised (int8)"),
    "scale": ("d = DequantizeLinear(q, p) y = MatMul(x, d)", np.float32(2), "scale of DequantizeLinear"),
    "setting": ("y = Pow(x, p)", np.array([2], np.float32), "exponent of Pow"),
    "scalar": ("y = Mul(x, p)", np.array(2, np.float32), "a scalar constant"),
    "mask": ("y = Add(x, p)", MASK, "a mask"),
    "unused": ("y = Neg(x)", WEIGHT, "nothing uses it"),
    "dead": ("a = Neg(p) y = Neg(x)", WEIGHT, "no output depends on it"),
    "rounded": (
        "a = Floor(p) y = Add(x, a)",
        WEIGHT,
        "every way to the outputs goes through what has no derivative (Floor)",
    ),
    "compared": (
        "a = Mul(x, p) b = Less(a, x) y = Where(b, x, x)",
        WEIGHT,
        "every way to the outputs goes through what has no derivative (Less)",
    ),
    "elsewhere": ("y = Neg(x) z = MatMul(x, p)", WEIGHT, "influences 'z' only; name that output in `of`"),
}


@pytest.mark.parametrize("case", REASONS)
def test_why_not(case: str) -> None:
    body, array, reason = REASONS[case]
    outputs = "float[N, M] y, float[N, M] z" if " z = " in body else "float[N, M] y"
    forward = model(
        f"judged (float[2, 2] x) => ({outputs}) {{ {body} }}",
        s=np.float32(0.5),
        q=np.ones((2, 2), np.int8),
        **({} if array is None else {"p": np.asarray(array)}),
    )
    found = next(parameter for parameter in onward.check(forward).parameters if parameter.name == "p")
    assert (found.trainable, found.reason) == (False, reason)


def test_what_is_known_of_a_parameter() -> None:
    report = onward.check(layer())
    assert report.trainable == report.parameters
    weight = report.parameters[0]
    assert (weight.name, weight.dtype, weight.shape) == ("w", "float32", [2, 2])
    assert (weight.size, weight.nbytes, weight.trainable) == (4, 16, True)
    assert (weight.reason, weight.source, weight.used_by) == ("floating-point weight", "initializer", ["MatMul"])


def test_running_statistics() -> None:
    names = ("scale", "bias", "mean", "var")
    forward = model(
        "norm (float[2, 2] x) => (float[2, 2] y) { y = BatchNormalization(x, scale, bias, mean, var) }",
        **dict.fromkeys(names, VECTOR),
    )
    reasons = {parameter.name: parameter.reason for parameter in onward.check(forward).parameters}
    assert reasons["mean"] == "running mean of BatchNormalization"
    assert reasons["var"] == "running variance of BatchNormalization"
    assert [parameter.name for parameter in onward.check(forward).trainable] == ["scale", "bias"]


def test_where_weights_are() -> None:
    """In Constant nodes, in branches, as inputs with a default, and in functions of the model."""
    forward = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        places (float[2, 2] x, bool flag, float[2] fed) => (float[2, 2] y) {
            c = Constant<value = float[2] {0.5, -1.0}>()
            a = Mul(x, c)
            b = Add(a, fed)
            d = own.block(b)
            y = If (flag) <
                then_branch = yes () => (float[2, 2] t) <float[2] inner = {0.5, 2.0}> { t = Mul(d, inner) },
                else_branch = no () => (float[2, 2] e) {
                    k = Constant<value = float[2] {3.0, 4.0}>()
                    e = Add(d, k)
                }
            >
        }
        <domain: "own", opset_import: ["" : 17]>
        block (p) => (r) { w = Constant<value = float[2] {5.0, 6.0}>() r = Mul(p, w) }""")
    forward.graph.initializer.append(numpy_helper.from_array(VECTOR, "fed"))
    report = onward.check(forward)
    assert report.ok
    sources = {parameter.name: parameter.source for parameter in report.trainable}
    assert sources.pop("c") == "Constant node"
    assert sources.pop("k") == "Constant node"
    assert sources.pop("inner") == "initializer of a subgraph"
    assert sources.pop("fed") == "input with default"
    assert list(sources.values()) == ["Constant node"], "that of the function"
    assert {value.name: value.has_default for value in report.inputs} == {"x": False, "flag": False, "fed": True}


def test_names_in_wrt() -> None:
    report = onward.check(layer(), wrt=["b"])
    assert {parameter.name: (parameter.trainable, parameter.reason) for parameter in report.parameters} == {
        "w": (False, "not named in `wrt`"),
        "b": (True, "named in `wrt`"),
    }
    assert report.state.parameters == 8


def test_integers_that_onward_computes_are_not_parameters_of_the_file() -> None:
    forward = model(
        """folded (float[2, 2] x) => (float[4] y) {
            s = Shape(w)
            n = ReduceProd<keepdims = 1>(s)
            a = MatMul(x, w)
            y = Reshape(a, n)
        }""",
        w=WEIGHT,
    )
    assert [parameter.name for parameter in onward.check(forward).parameters] == ["w"]

"""Gradient rules from outside: declared, used, checked, replaced and forgotten again."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import onward
from onward import onnxblock
from onward.artifacts import generate_artifacts
from onward.autodiff.registry import nondifferentiable_operators, operators_with_rules
from onward.errors import MissingRuleError, OnwardError
from onward.graph.nodes import attribute
from onward.testing import check_gradient, run_on_runtime, temporary_rules


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    with temporary_rules():
        yield


def model(body: str, opset: int = 17, functions: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}, "acme": 1]> custom {body}\n{functions}'
    )


def declare(result, *op_types: str, **options) -> None:
    """A rule that returns what `result` makes of (op, node, dy)."""
    onward.vjp(*op_types, domain="acme", **options)(lambda op, node, dy: result(op, node, dy))


class Cube(OpRun):
    op_domain = "acme"

    def _run(self, x):
        return (x**3,)


class CubeGrad(OpRun):
    op_domain = "acme"

    def _run(self, dy, x, factor=1.0):
        return (factor * dy * x * x,)


class SinAndSquare(OpRun):
    op_domain = "acme"

    def _run(self, x):
        return np.sin(x), x * x


class Scaled(OpRun):
    op_domain = "acme"

    def _run(self, a, b, scale=1.0):
        return (scale * a * b,)


def run(made, feeds):
    names = [output.name for output in made.graph.output]
    needed = {value.name for value in made.graph.input}
    evaluator = ReferenceEvaluator(made, new_ops=[Cube, CubeGrad, SinAndSquare, Scaled])
    return dict(zip(names, evaluator.run(None, {k: v for k, v in feeds.items() if k in needed}), strict=True))


def cube(op, node, dy):
    x = node.inputs[0]
    return dy * x * x * 3


X = np.random.default_rng(0).normal(size=(2, 3))


# Use ----------------------------------------------------------------------------------------------------------------


def test_an_operator_between_others() -> None:
    onward.vjp("Cube", domain="acme")(cube)
    made = model("(double[2, 3] x) => (double[2, 3] y) <double[2, 3] b> { a = Sin(x) b = acme.Cube(a) y = Exp(b) }")
    check_gradient(made, {"x": X}, wrt=["x"], run=run)


def test_what_the_model_says_of_an_unknown_operator_is_believed() -> None:
    """Inference goes on from there; without it, nothing can be said of what follows."""
    onward.vjp("Cube", domain="acme")(cube)
    made = model("(double[N, 3] x) => (double[M, 3] y) { b = acme.Cube(x) c = Exp(b) d = Mul(c, c) y = Add(d, c) }")
    with pytest.raises(OnwardError, match=r"the type of '.', an output of .* Add a value_info"):
        onward.gradient(made, wrt=["x"])
    made.graph.value_info.append(helper.make_tensor_value_info("b", TensorProto.DOUBLE, ["N", 3]))
    check_gradient(made, {"x": X}, wrt=["x"], run=run)


def test_several_inputs_that_broadcast_and_attributes() -> None:
    def scaled(op, node, dy):
        a, b = node.inputs
        scale = attribute(node, "scale", 1.0)
        return dy * b * scale, dy * a * scale

    declare(scaled, "Scaled", broadcast=True)
    made = model("(double[2, 3] x, double[3] w) => (double[2, 3] y) { y = acme.Scaled<scale = 2.0>(x, w) }")
    check_gradient(made, {"x": X, "w": X[0] + 1}, wrt=["x", "w"], run=run)


def test_several_outputs() -> None:
    """An output that does not reach the loss has no cotangent."""
    seen = []

    @onward.vjp("SinAndSquare", domain="acme")
    def split(op, node, d_sine, d_square):
        seen.append((d_sine is None, d_square is None))
        x = node.inputs[0]
        parts = []
        if d_sine is not None:
            parts.append(d_sine * op.Cos(x))
        if d_square is not None:
            parts.append(d_square * x * 2)
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

    made = model("(double[2, 3] x) => (double[2, 3] a, double[2, 3] b) { a, b = acme.SinAndSquare(x) }")
    for outputs in (["a"], ["b"], ["a", "b"]):
        check_gradient(made, {"x": X}, wrt=["x"], of=outputs, second_order=False, run=run)
    assert seen == [(False, True), (True, False), (False, False)]


def test_a_kernel_for_the_gradient() -> None:
    declare(lambda op, node, dy: op.custom("acme", "CubeGrad", dy, node.inputs[0], like=dy, factor=3.0), "Cube")
    made = model("(double[2, 3] x) => (double[2, 3] y) { a = Sin(x) y = acme.Cube(x) }")
    first = onward.gradient(made, wrt=["x"])
    assert [node.op_type for node in first.graph.node] == ["Cube", "CubeGrad"]
    check_gradient(made, {"x": X}, wrt=["x"], second_order=False, run=run)
    with pytest.raises(MissingRuleError, match=r"acme\.CubeGrad"):
        onward.gradient(first, wrt=["x"], of="x_grad")


def test_a_kernel_in_a_domain_that_the_model_does_not_use() -> None:
    onward.vjp("Tanh", override=True)(lambda op, node, dy: op.custom("other", "TanhGrad", dy, like=[dy]))
    first = onward.gradient(model("(float[2] x) => (float[2] y) { y = Tanh(x) }"), wrt=["x"])
    assert {opset.domain: opset.version for opset in first.opset_import} == {"": 17, "other": 1}


def test_operators_without_derivative() -> None:
    onward.nondifferentiable("Cube", domain="acme")
    made = model("(double[2, 3] x) => (double[2, 3] y) <double[2, 3] a> { a = acme.Cube(x) y = Mul(a, x) }")
    results = run(onward.gradient(made, wrt=["x"]), {"x": X, "y_grad": np.ones_like(X)})
    np.testing.assert_allclose(results["x_grad"], X**3)
    onward.nondifferentiable("Cube", domain="acme")  # once more is no contradiction


def test_a_standard_rule_is_replaced_on_purpose_only() -> None:
    made = model("(float[2] x) => (float[2] y) { y = Tanh(x) }")
    feeds = {"x": np.zeros(2, np.float32), "y_grad": np.ones(2, np.float32)}
    for domain in ("", "ai.onnx"):
        with pytest.raises(
            OnwardError, match=r"^Tanh has a gradient rule already, onward\..*override=True replaces it"
        ):
            onward.vjp("Tanh", domain=domain)(lambda op, node, dy: dy * 7)
    with temporary_rules():
        onward.vjp("Tanh", override=True)(lambda op, node, dy: dy * 7)
        assert run_on_runtime(onward.gradient(made, wrt=["x"]), feeds)["x_grad"].tolist() == [7, 7]
    with temporary_rules():
        onward.nondifferentiable("Tanh", override=True)
        assert run_on_runtime(onward.gradient(made, wrt=["x"]), feeds)["x_grad"].tolist() == [0, 0]
    assert run_on_runtime(onward.gradient(made, wrt=["x"]), feeds)["x_grad"].tolist() == [1, 1]


def test_rules_are_forgotten_after_an_error_too() -> None:
    before = operators_with_rules(), nondifferentiable_operators()
    with contextlib.suppress(OnwardError), temporary_rules():
        onward.vjp("Cube", domain="acme")(cube)
        onward.nondifferentiable("Sphere", domain="acme")
        onward.nondifferentiable("Tanh")
    assert (operators_with_rules(), nondifferentiable_operators()) == before


# Functions that a model brings along --------------------------------------------------------------------------------

ROUND = """
    <domain: "acme", opset_import: ["": 12]>
    Round <scale: float> (x) => (y) {
        s = Constant<value_float: float = @scale>()
        a = Mul(x, s)
        n = ReduceSum<axes = [1], keepdims = 1>(a)
        zero = Sub(n, n)
        b = Round(a)
        c = Add(b, zero)
        y = Div(c, s)
    }
"""


def rounding() -> onnx.ModelProto:
    return model("(float[2, 3] x) => (float[2, 3] y) { a = acme.Round<scale = 4.0>(x) y = Mul(a, a) }", 12, ROUND)


def test_a_function_without_rule_is_differentiated_by_its_body() -> None:
    feeds = {"x": X.astype(np.float32), "y_grad": np.ones((2, 3), np.float32)}
    first = onward.gradient(rounding(), wrt=["x"])
    assert not first.functions
    assert not run_on_runtime(first, feeds)["x_grad"].any()


@pytest.mark.parametrize("newer", [False, True])
def test_a_function_with_a_rule_stays_whole(newer: bool) -> None:
    """Also where the model has to move to an opset in which the function would be written in another way."""

    def straight_through(op, node, dy):
        return op.CastLike(dy, node.inputs[0]) if newer else dy

    declare(straight_through, "Round")
    first = onward.gradient(rounding(), wrt=["x"])
    assert first.opset_import[0].version == (15 if newer else 12)
    assert [function.name for function in first.functions] == ["Round"]
    results = run_on_runtime(first, {"x": X.astype(np.float32), "y_grad": np.ones((2, 3), np.float32)})
    rounded = np.round(X * 4) / 4
    np.testing.assert_allclose(results["y"], rounded**2, rtol=1e-6)
    np.testing.assert_allclose(results["x_grad"], 2 * rounded, rtol=1e-6)


def test_a_function_is_declared_constant() -> None:
    declare(lambda op, node, dy: dy, "Round")
    onward.nondifferentiable("Round", domain="acme", override=True)
    first = onward.gradient(
        model("(float[2, 3] x) => (float[2, 3] y) { a = acme.Round<scale = 4.0>(x) y = Mul(a, x) }", 12, ROUND),
        wrt=["x"],
    )
    results = run_on_runtime(first, {"x": X.astype(np.float32), "y_grad": np.ones((2, 3), np.float32)})
    np.testing.assert_allclose(results["x_grad"], np.round(X * 4) / 4, rtol=1e-6)


@pytest.mark.parametrize("front", ["step", "artifacts"])
def test_a_function_with_a_rule_trains(front, tmp_path) -> None:
    declare(lambda op, node, dy: dy, "Round")
    forward = model(
        "(float[N, 3] x) => (float[N, 1] y) <float[1, 3] w = {0.1, 0.2, 0.3}> "
        "{ a = acme.Round<scale = 4.0>(w) b = Mul(x, a) y = ReduceSum<axes = [1]>(b) }",
        12,
        ROUND,
    )
    if front == "step":
        made = onward.training_step(forward, loss="mse", optimizer="sgd", trainable=["w"])
    else:
        artifacts = generate_artifacts(
            forward, requires_grad=["w"], loss=onnxblock.loss.MSELoss(), artifact_directory=tmp_path
        )
        made = artifacts.training_model
        assert [function.name for function in artifacts.eval_model.functions] == ["Round"]
    assert [function.name for function in made.functions] == ["Round"]
    onnx.checker.check_model(made)
    onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])


# Mistakes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: onward.vjp(), 'vjp takes the names of operators: vjp("Foo"), or vjp("Foo", domain="my.domain")'),
        (lambda: onward.vjp(cube), "not vjp(<function cube"),
        (lambda: onward.vjp(("acme", "Cube")), "not vjp(('acme', 'Cube'))"),
        (lambda: onward.vjp("Cube", domain=3), "the domain of an operator is a string, not 3"),
        (lambda: onward.vjp("Cube", domain="acme")(3), "the rule of acme.Cube must be a function (op, node, *dy)"),
        (lambda: onward.vjp("Cube", domain="acme")(lambda op, dy: dy), "<lambda>(op, dy) is not"),
        (
            lambda: onward.vjp("Cube", domain="acme")(lambda op, node, dy, *, scale: dy),
            "<lambda>(op, node, dy, *, scale) is not",
        ),
        (lambda: onward.nondifferentiable(), "nondifferentiable takes the names of operators"),
        (lambda: onward.nondifferentiable("Tanh"), "Tanh has a gradient rule already"),
        (lambda: onward.vjp("Shape")(cube), "Shape is declared to have no derivative; override=True replaces that"),
    ],
)
def test_wrong_declarations(make, message: str) -> None:
    before = operators_with_rules(), nondifferentiable_operators()
    with pytest.raises(OnwardError, match=re.escape(message)):
        make()
    assert (operators_with_rules(), nondifferentiable_operators()) == before


def test_a_rule_is_declared_once() -> None:
    onward.vjp("Cube", domain="acme")(cube)
    with pytest.raises(OnwardError, match=r"acme\.Cube has a gradient rule already, .*test_custom\.cube;"):
        onward.vjp("Cube", domain="acme")(cube)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda op, node, dy: dy, "returned 1 cotangents for 2 inputs ('x', 'w'); return one for each"),
        (lambda op, node, dy: (dy, None, dy), "returned 3 cotangents for 2 inputs"),
        (lambda op, node, dy: (dy, 2.0), "a rule returns values of the graph: one for each input"),
        (lambda op, node, dy: 2.0, "returned 2.0; a rule returns values of the graph"),
        (lambda op, node, dy: {dy: dy}, "no input of it"),
        (lambda op, node, dy: (op.Cast(dy, to=TensorProto.FLOAT), None), "made a cotangent of type FLOAT for 'x'"),
        (lambda op, node, dy: (dy, dy), "made a cotangent of shape [2, 3] for 'w' of shape [3]; a cotangent has the "),
        (lambda op, node, dy: (op.Transpose(dy), None), "made a cotangent of shape [3, 2] for 'x' of shape [2, 3]"),
    ],
)
def test_wrong_results(result, message: str) -> None:
    declare(result, "Scaled")
    made = model("(double[2, 3] x, double[3] w) => (double[2, 3] y) { y = acme.Scaled(x, w) }")
    made.graph.node[0].name = "here"
    with pytest.raises(OnwardError, match=re.escape(message)) as raised:
        onward.gradient(made, wrt=["x", "w"])
    assert str(raised.value).startswith("the rule of acme.Scaled node 'here' ")


def test_a_rule_for_another_number_of_outputs() -> None:
    onward.vjp("SinAndSquare", domain="acme")(lambda op, node, dy: dy)
    made = model("(double[2] x) => (double[2] a, double[2] b) { a, b = acme.SinAndSquare(x) }")
    with pytest.raises(
        OnwardError, match=r"acme\.SinAndSquare node 'a' has 2 outputs, .* but <lambda>\(op, node, dy\) cannot be"
    ):
        onward.gradient(made, wrt=["x"])


def test_symbols_are_no_contradiction() -> None:
    """Only sizes that are certainly different are."""
    declare(lambda op, node, dy: (op.Reshape(dy, [-1, 3]), None), "Scaled")
    onward.gradient(model("(float[N, 3] x, float[3] w) => (float[M, 3] y) { y = acme.Scaled(x, w) }"), wrt=["x"])

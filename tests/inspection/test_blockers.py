"""Everything that stands in the way is listed, with its nodes and what to do; nothing of it raises."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import onward
from onward.autodiff.expansion import ADVICE
from onward.errors import InvalidModelError, OnwardError, UnknownNameError
from onward.graph.opsets import accepted_by_runtime
from onward.inspection.content import Blocker
from onward.inspection.operators import REASONS
from onward.testing import run_on_runtime, temporary_rules
from tests.inspection.models import VECTOR, WEIGHT, layer, model

ACME = ', "acme" : 1'


def agrees(forward: onnx.ModelProto, **arguments: object) -> bool:
    """Whether `check` and `gradient` say the same."""
    try:
        onward.gradient(forward, **arguments)  # type: ignore[arg-type]
        built = True
    except OnwardError:
        built = False
    return onward.check(forward, **arguments).ok == built  # type: ignore[arg-type]


def named(forward: onnx.ModelProto, *names: str) -> onnx.ModelProto:
    for node, name in zip(forward.graph.node, names, strict=False):
        node.name = name
    return forward


def only(blockers: list[Blocker]) -> Blocker:
    assert len(blockers) == 1, blockers
    return blockers[0]


def test_a_model_without_blockers() -> None:
    report = onward.check(layer())
    assert report.ok
    assert report.blockers == []
    assert agrees(layer())


def custom() -> onnx.ModelProto:
    forward = model(
        """custom (float[2, 2] x) => (float[2, 2] y) {
            a = MatMul(x, w)
            b = acme.Warp(a)
            c = acme.Bend(b)
            d = acme.Warp(c)
            e = Mul(d, late)
            y = Add(e, last)
        }""",
        domains=ACME,
        w=WEIGHT,
        late=WEIGHT,
        last=VECTOR,
    )
    for name in "bcd":
        forward.graph.value_info.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 2]))
    return named(forward, "matmul", "warp_1", "bend", "")


def test_all_operators_without_rule_with_all_their_nodes() -> None:
    report = onward.check(custom())
    found = {blocker.operator: blocker for blocker in report.blockers}
    assert set(found) == {"acme.Warp", "acme.Bend"}
    assert found["acme.Warp"].nodes == ["warp_1", "d"]
    assert found["acme.Bend"].nodes == ["bend"]
    assert found["acme.Warp"].parameters == ["w"], "what comes after them needs no rule of theirs"
    assert found["acme.Warp"].remedy == ADVICE["rule"][1], "the words of onward.gradient"
    assert {operator.name for operator in report.operators if operator.blocks} == set(found)
    assert agrees(custom())


def test_the_remedy_works() -> None:
    """Leaving out what the blocker names is enough."""
    assert onward.check(custom(), wrt=["late", "last"]).ok
    assert agrees(custom(), wrt=["late", "last"])


def test_operators_off_the_way_do_not_block() -> None:
    forward = model(
        "beside (float[2] x) => (float[2] y, float[2] z) { y = Mul(x, w) z = acme.Warp(y) }", domains=ACME, w=VECTOR
    )
    report = onward.check(forward)
    assert report.ok
    warp = next(operator for operator in report.operators if operator.name == "acme.Warp")
    assert (warp.how, warp.blocks) == ("missing", False)
    assert "no rule (no gradient has to pass it)" in str(report)


IN_BODIES = {
    "If": """body (float[2] x, bool flag) => (float[2] y) {
        a = Mul(x, w)
        y = If (flag) <
            then_branch = yes () => (float[2] t) { t = acme.Warp(a) },
            else_branch = no () => (float[2] e) { e = acme.Bend(a) }
        >
    }""",
    "Loop": """body (float[2] x, int64 trips, bool go) => (float[2] y) {
        a = Mul(x, w)
        y = Loop (trips, go, a) <body = once (int64 i, bool before, float[2] s) => (bool after, float[2] t) {
            after = Identity(before)
            b = acme.Warp(s)
            t = acme.Bend(b)
        }>
    }""",
    "Scan": """body (float[2] x, float[3, 2] rows) => (float[2] y, float[3, 2] all) {
        a = Mul(x, w)
        y, all = Scan <num_scan_inputs = 1, body = once (float[2] s, float[2] row) => (float[2] t, float[2] out) {
            b = acme.Warp(s)
            t = acme.Bend(b)
            out = Identity(row)
        }> (a, rows)
    }""",
}


@pytest.mark.parametrize("kind", IN_BODIES)
def test_inside_of_bodies(kind: str) -> None:
    forward = model(IN_BODIES[kind], domains=ACME, w=VECTOR)
    blocked = {blocker.operator for blocker in onward.check(forward).blockers}
    assert blocked >= {"acme.Warp", "acme.Bend"}
    assert all(blocker.parameters == ["w"] for blocker in onward.check(forward).blockers)


def test_inside_of_model_functions() -> None:
    forward = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "own" : 1, "acme" : 1]>
        calls (float[2] x) => (float[2] y) <float[2] w = {0.5, 2.0}> {
            a = Mul(x, w)
            b = own.block(a)
            y = own.block(b)
        }
        <domain: "own", opset_import: ["" : 17, "acme" : 1]>
        block (p) => (r) { q = acme.Warp(p) r = Relu(q) }""")
    report = onward.check(forward)
    warp = next(blocker for blocker in report.blockers if blocker.operator == "acme.Warp")
    assert len(warp.nodes) == 2, "one for each call"
    counts = {operator.name: (operator.count, operator.how) for operator in report.operators}
    assert counts == {
        "Mul": (1, "rule"),
        "Relu": (2, "rule"),
        "acme.Warp": (2, "missing"),
        "own.block": (2, "model function"),
    }


def test_integer_arithmetic() -> None:
    forward = model(
        """whole (float[2, 2] x) => (float[2, 2] y) {
            a = Mul(x, w)
            q, s, z = DynamicQuantizeLinear(a)
            i = MatMulInteger(q, weight, z)
            f = Cast<to = 1>(i)
            y = Mul(f, s)
        }""",
        w=VECTOR,
        weight=np.ones((2, 2), np.int8),
    )
    blocker = only([b for b in onward.check(forward).blockers if b.operator == "MatMulInteger"])
    assert (blocker.nodes, blocker.remedy) == (["i"], ADVICE["integer"][1])
    assert "QDQ" in blocker.remedy
    assert agrees(forward)


@pytest.fixture
def _rules_of_a_test() -> Iterator[None]:
    with temporary_rules():
        yield


@pytest.mark.usefixtures("_rules_of_a_test")
def test_a_function_that_has_a_rule_stays_whole() -> None:
    forward = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        calls (float[2] x) => (float[2] y) <float[2] w = {0.5, 2.0}> { a = Mul(x, w) y = own.cube(a) }
        <domain: "own", opset_import: ["" : 17]>
        cube (p) => (r) { q = Mul(p, p) r = Mul(q, p) }""")
    ways = {operator.name: (operator.count, operator.how) for operator in onward.check(forward).operators}
    assert ways == {"Mul": (3, "rule"), "own.cube": (1, "model function")}

    @onward.vjp("cube", domain="own")
    def cube(op, node, dy):  # type: ignore[no-untyped-def]
        x = node.inputs[0]
        return dy * x * x * 3

    ways = {operator.name: (operator.count, operator.how) for operator in onward.check(forward).operators}
    assert ways == {"Mul": (1, "rule"), "own.cube": (1, "custom rule")}
    assert "rule registered by you" in str(onward.check(forward))


@pytest.mark.usefixtures("_rules_of_a_test")
def test_every_rule_that_fails_is_listed() -> None:
    """A rule says that it cannot, or has a mistake; onward.gradient only reports the last one."""

    @onward.vjp("Stubborn", domain="acme")
    def stubborn(op, node, dy):  # type: ignore[no-untyped-def]
        raise OnwardError(f"{node.name} is stubborn. Be patient.")

    @onward.vjp("Broken", domain="acme")
    def broken(op, node, dy):  # type: ignore[no-untyped-def]
        return dy + 1 / 0

    forward = model(
        """failing (float[2] x) => (float[2] y) {
            a = Mul(x, w)
            b = acme.Stubborn(a)
            c = acme.Broken(b)
            d = Relu(c)
            y = acme.Stubborn(d)
        }""",
        domains=ACME,
        w=VECTOR,
    )
    for name in "bc":
        forward.graph.value_info.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]))
    report = onward.check(named(forward, "mul", "first", "middle", "relu", "last"))
    assert [(blocker.kind, blocker.operator, blocker.nodes) for blocker in report.blockers] == [
        ("rule", "acme.Stubborn", ["last"]),
        ("rule", "acme.Broken", ["middle"]),
        ("rule", "acme.Stubborn", ["first"]),
    ]
    last, middle, first = (blocker.reason for blocker in report.blockers)
    assert (last, first) == ("last is stubborn", "first is stubborn")
    assert "could not be traced" in middle
    assert "`return dy + 1 / 0`): ZeroDivisionError: division by zero" in middle
    assert report.blockers[0].remedy == "Be patient."
    assert all(blocker.parameters == ["w"] for blocker in report.blockers)
    assert {operator.how for operator in report.operators if operator.name.startswith("acme")} == {"custom rule"}


def test_an_output_without_derivative() -> None:
    forward = model(
        "labels (float[2, 2] x) => (int64[2] label, float[2, 2] score) "
        "{ score = MatMul(x, w) label = ArgMax<axis = 1, keepdims = 0>(score) }",
        w=WEIGHT,
    )
    report = onward.check(forward)
    blocker = only(report.blockers)
    assert blocker.kind == "output"
    assert "'label' has type INT64" in blocker.reason
    assert blocker.remedy == "Name another output in `of`: 'score'."
    assert onward.check(forward, of="score").ok
    assert agrees(forward)
    assert agrees(forward, of="score")


def test_nothing_to_train() -> None:
    forward = model("bare (float[2] x) => (float[2] y) { y = Exp(x) }")
    blocker = only(onward.check(forward).blockers)
    assert blocker.kind == "parameters"
    assert blocker.remedy == "Name graph inputs or initializers in `wrt`."
    assert onward.check(forward, wrt=["x"]).ok
    assert agrees(forward)


BFLOAT16 = """<ir_version: 10, opset_import: ["" : 22]>
g (bfloat16[N, 4] x) => (float[N, 3] y) { BODY }"""


def _in_bfloat16(body: str) -> onnx.ModelProto:
    found = onnx.parser.parse_model(BFLOAT16.replace("BODY", body))
    ones = np.ones((4, 3), onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16))
    found.graph.initializer.append(onnx.numpy_helper.from_array(ones, "w"))
    return found


def test_types_without_kernels() -> None:
    """What onward can differentiate and onnxruntime cannot run: bfloat16, but for what moves or converts it."""
    made = _in_bfloat16("z = MatMul (x, w)  y = Cast <to = 1> (z)")
    report = onward.check(made)
    (blocker,) = report.blockers
    assert not report.ok
    assert (blocker.kind, "MatMul" in blocker.reason, report.flops is not None) == ("type", True, True)
    assert "bfloat16" in str(report)
    with pytest.raises(Exception, match="NOT_IMPLEMENTED"):
        run_on_runtime(made, {"x": np.ones((2, 4), np.float32)})
    converted = _in_bfloat16("f = Cast <to = 1> (w)  e = Cast <to = 1> (x)  y = MatMul (e, f)")
    assert onward.check(converted, wrt=["w"]).ok


def test_an_opset_that_is_too_new() -> None:
    newest, _ = accepted_by_runtime()
    forward = layer()
    forward.opset_import[0].version = newest + 1
    report = onward.check(forward)
    blocker = only(report.blockers)
    assert blocker.kind == "opset"
    assert f"opset_version={newest} or lower" in blocker.remedy
    assert not report.versions.accepted
    assert len(report.trainable) == 2, "the rest of the report is there"


def test_an_invalid_model_is_reported_as_far_as_possible() -> None:
    forward = layer()
    forward.graph.node[1].op_type = "Plus"
    report = onward.check(forward)
    assert [blocker.kind for blocker in report.blockers] == ["model", "operator"]
    assert "No Op registered for Plus" in report.blockers[0].reason
    assert report.blockers[1].operator == "Plus"
    assert [parameter.name for parameter in report.parameters] == ["w", "b"]


CONTRADICTIONS = {
    "shapes": "wrong (float[2, 3] x) => (float[2, 2] y) { y = MatMul(x, w) }",
    "a circle": "wrong (float[2, 2] x) => (float[2, 2] y) { a = Add(x, b) b = MatMul(a, w) y = Neg(b) }",
    "a value from nowhere": "wrong (float[2, 2] x) => (float[2, 2] y) { a = MatMul(x, w) y = Add(a, nowhere) }",
    "no outputs": "wrong (float[2, 2] x) => () { y = MatMul(x, w) }",
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_models_that_contradict_themselves(case: str) -> None:
    report = onward.check(model(CONTRADICTIONS[case], w=WEIGHT))
    assert not report.ok
    assert all(blocker.remedy for blocker in report.blockers)
    assert str(report)


def test_wrong_annotations_do_no_harm() -> None:
    forward = layer()
    forward.graph.value_info.append(onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [7, 9, 11]))
    assert onward.check(forward).ok


def test_external_data_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(layer(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert onward.check(path).ok
    (tmp_path / "weights.bin").unlink()
    report = onward.check(path)
    blocker = only(report.blockers)
    assert (blocker.kind, blocker.nodes) == ("model", ["w", "b"])
    assert "weights.bin" in blocker.reason
    assert [(p.name, p.shape, p.nbytes, p.source) for p in report.trainable] == [
        ("w", [2, 2], 16, "external data"),
        ("b", [2], 8, "external data"),
    ]


def test_what_is_not_a_model_raises(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("this is not protobuf")
    (tmp_path / "empty.onnx").touch()
    for wrong in (None, 3, tmp_path, tmp_path / "missing.onnx", tmp_path / "text.onnx", onnx.ModelProto()):
        with pytest.raises(InvalidModelError):
            onward.check(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidModelError, match="the model is empty"):
        onward.check(tmp_path / "empty.onnx")


@pytest.mark.parametrize("arguments", [{"wrt": ["q"]}, {"of": "q"}, {"dims": {"M": 2}}])
def test_names_that_the_model_does_not_have_raise(arguments: dict[str, object]) -> None:
    with pytest.raises(UnknownNameError, match=r"names '(q|M)'"):
        onward.check(layer(), **arguments)  # type: ignore[arg-type]


def test_every_refusal_has_words() -> None:
    assert REASONS.keys() == ADVICE.keys()


def test_the_model_is_not_modified() -> None:
    forward = custom()
    before = forward.SerializeToString(deterministic=True)
    onward.check(forward)
    assert forward.SerializeToString(deterministic=True) == before
